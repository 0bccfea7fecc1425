"""A flipped bit, or a worker that drifts, is found, named and mended: by the majority, or from the last checkpoint."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import rueda
from harness import workers
from rueda.errors import RecipeError, WorldError
from rueda.records import Recipe, Run
from rueda.records.run import Incident
from rueda.train.drift import checksum, checksums, combined, compared_parameters, describe_drift
from rueda.train.training import Training
from rueda.world import current
from tinytask import assert_same, network, parameters, tiny_task

HOST = socket.gethostname()
RECIPE = Recipe(batch=12, epochs=2, rate=0.05, optimizer="adam", ema_decay=0.9, compare_every=4, checkpoint_every=6)
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def flip(tensor: Tensor, index: int, bit: int) -> None:
    """Flip a bit of one number, in the order of the memory."""
    flat = tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    numbers = flat.view(INTEGERS[tensor.element_size()])
    mask = 1 << bit
    numbers[index] ^= mask - (1 << 8 * tensor.element_size()) if bit == 8 * tensor.element_size() - 1 else mask


CASES: dict[str, Callable[[], Tensor]] = {
    "float32": lambda: torch.randn(3, 4),
    "an odd count": lambda: torch.randn(7),
    "one number": lambda: torch.randn(1),
    "float64": lambda: torch.randn(5, dtype=torch.float64),
    "bfloat16": lambda: torch.randn(9).bfloat16(),
    "float16": lambda: torch.randn(4).half(),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "a part of another": lambda: torch.randn(11)[3:10],
    "transposed": lambda: torch.randn(3, 4).T,
}


@pytest.mark.parametrize("made", CASES.values(), ids=CASES)
def test_every_flipped_bit_changes_the_checksum(made: Callable[[], Tensor]) -> None:
    tensor = made()
    right, same = checksum(tensor), checksum(tensor.clone())
    assert right == same
    width = 8 * tensor.element_size()
    for index in {0, tensor.numel() // 2, tensor.numel() - 1}:
        for bit in (0, 1, width // 2, width - 2):
            flip(tensor, index, bit)
            assert checksum(tensor) != right, (index, bit)
            flip(tensor, index, bit)
    assert checksum(tensor) == right


def test_exchanged_parameters_are_seen() -> None:
    one, other = torch.randn(4), torch.randn(4)
    device = torch.device("cpu")
    assert combined(checksums([one, other], device)) != combined(checksums([other, one], device))
    assert len(checksums([], device)) == 0 and combined(checksums([], device)) == 0


@contextmanager
def disturbed(at: int, what: Callable[[Training], None], *, once: bool = True) -> Iterator[None]:
    """Let something happen to a training after an update, the first time that it is made, or at each from then on."""
    original, done = Training.step, []

    def step(self: Training, **options: Any) -> Any:
        result = original(self, **options)
        if (self.state.step == at and not done) or (not once and self.state.step >= at):
            done.append(1)
            what(self)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "step", step)
        yield


def on_rank(rank: int, what: Callable[[Training], None]) -> Callable[[Training], None]:
    return lambda training: what(training) if training.world.rank == rank else None


def flip_weight(training: Training) -> None:
    flip(dict(training.model.named_parameters())["3.weight"], 5, 22)


def flip_moment(training: Training) -> None:
    weight = dict(training.model.named_parameters())["0.bias"]
    flip(training.optimizer.state[weight]["exp_avg"], 2, 30)


def drift_away(training: Training) -> None:
    with torch.no_grad():
        for parameter in training.model.parameters():
            parameter.add_(0.25)


def all_equal(training_state: Tensor) -> bool:
    parts = current().all_gather(training_state)
    return all(torch.equal(parts[0], part) for part in parts)


def errors_of(folder: Path) -> list[Incident]:
    """Return the silent errors of a run; on a busy machine there may be stragglers, too."""
    return [one for one in Run(folder).incidents() if one.what == "silent-error"]


REPAIRED = {
    "a bit of a parameter": (flip_weight, 1, "3.weight of rank 1"),
    "a bit of the optimizer's state": (flip_moment, 2, "0.bias of rank 2"),
    "all parameters": (drift_away, 1, "0.weight and 3 more of rank 1"),
}


@pytest.mark.parametrize("name", REPAIRED)
@workers(3)
def test_three_workers_repair_one(tmp_path: Path, name: str) -> None:
    what, rank, told = REPAIRED[name]
    world = current()
    seen: list[Training] = []
    with disturbed(5, lambda training: (seen.append(training), on_rank(rank, what)(training))[0]):  # type: ignore[func-returns-value]
        result = rueda.fit(tiny_task(480), RECIPE, folder=tmp_path / "run", progress=False)
    assert result.status == "finished" and all_equal(parameters(result.model))
    state = [value for of in seen[0].optimizer.state.values() for value in of.values()]
    assert all_equal(torch.cat([value.flatten().float() for value in state]))
    assert seen[0].average is not None and all(map(all_equal, seen[0].average.state_dict().values()))
    if world.is_main:
        (found,) = errors_of(tmp_path / "run")
        assert (found.what, found.ranks, found.hosts) == ("silent-error", (rank,), (HOST,))
        assert found.text.startswith(f"update {found.step}: {told} ({HOST}) differ")
        assert "repaired with the parameters and the optimizer state of rank 0" in found.text
        assert ("there in one bit, as after a fault" in found.text) == (what is flip_weight)
        assert (found.step, found.since_step) == ((6, 4) if what is not flip_moment else (found.step, found.since_step))
        assert Run(tmp_path / "run").rows("epoch")[-1].step == 26  # nothing was repeated or left out


def flip_anchor(training: Training) -> None:
    assert training.updater.exchange is not None
    flip(training.updater.exchange.anchors["3.weight"], 5, 22)


@workers(3)
def test_the_common_parameters_of_workers_with_updates_of_their_own_are_repaired(tmp_path: Path) -> None:
    """The repaired worker goes on as a copy of the right one; an exchange is under way, from update 5 to 9."""
    recipe = Recipe(
        batch=12, epochs=2, rate=0.05, compare_every=4, sync_every=5, sync_delay=4, outer_optimizer="nesterov"
    )
    equal: list[tuple[bool, bool]] = []

    def compare_own(training: Training) -> None:
        assert training.updater.exchange is not None
        common = torch.cat([one.flatten() for one in training.updater.exchange.anchors.values()])
        equal.append((all_equal(common), all_equal(parameters(training.model))))

    with disturbed(6, on_rank(1, flip_anchor)), disturbed(9, compare_own):
        result = rueda.fit(tiny_task(480), recipe, folder=tmp_path / "run", progress=False)
    assert result.status == "finished" and all_equal(parameters(result.model)) and equal == [(True, False)]
    if current().is_main:
        (found,) = errors_of(tmp_path / "run")
        assert (found.step, found.ranks, found.parameters) == (8, (1,), ("3.weight",))
        assert "repaired with the parameters and the optimizer state of rank 0" in found.text
        assert Run(tmp_path / "run").rows("epoch")[-1].step == 26


@workers(2)
def test_two_workers_go_back(tmp_path: Path) -> None:
    """The bit flips after update 9; the comparison after update 12 finds it: back to the checkpoint of update 6."""
    world = current()
    whole = rueda.fit(tiny_task(480), RECIPE, folder=tmp_path / "whole", progress=False)
    with disturbed(9, on_rank(1, flip_weight)):
        result = rueda.fit(tiny_task(480), RECIPE, folder=tmp_path / "run", progress=False)
    assert torch.equal(parameters(whole.model), parameters(result.model))
    if world.is_main:
        (found,) = errors_of(tmp_path / "run")
        assert (found.ranks, found.hosts, found.parameters) == ((0, 1), (HOST, HOST), ("3.weight",))
        assert (found.step, found.since_step) == (6, 8)
        assert found.text.startswith(f"update 12: 3.weight of rank 1 ({HOST}) differs from that of rank 0 ({HOST}), ")
        assert found.text.endswith("; which is right is unknown: back to update 6")
        steps = [[row.step for row in Run(tmp_path / name).rows()] for name in ("whole", "run")]
        assert steps[0] == steps[1]
        a, b = (Run(tmp_path / name).checkpoints for name in ("whole", "run"))
        from rueda.train.checkpoint import latest_checkpoint

        first, second = latest_checkpoint(a), latest_checkpoint(b)
        assert first is not None and second is not None
        for part in ("model", "average", "optimizer", "loader"):
            assert_same(first[1][part], second[1][part])


@workers(2)
def test_before_the_first_checkpoint_the_start_is_gone_back_to(tmp_path: Path) -> None:
    whole = rueda.fit(tiny_task(480), RECIPE, progress=False)
    with disturbed(2, on_rank(0, flip_weight)):
        result = rueda.fit(tiny_task(480), RECIPE, folder=tmp_path / "run", progress=False)
    assert torch.equal(parameters(whole.model), parameters(result.model))
    if current().is_main:
        assert [one.step for one in errors_of(tmp_path / "run")] == [0]


@workers(2)
def test_an_error_just_before_a_checkpoint_is_never_saved(tmp_path: Path) -> None:
    """Without a comparison in between, and also at the last update of an epoch."""
    recipe = RECIPE.change(compare_every=1000)
    whole = rueda.fit(tiny_task(480), recipe, progress=False)
    for at, back in {12: 6, 20: 18, 40: 36}.items():
        with disturbed(at, on_rank(1, flip_weight)):
            result = rueda.fit(tiny_task(480), recipe, folder=tmp_path / str(at), progress=False)
        assert torch.equal(parameters(whole.model), parameters(result.model)), at
        if current().is_main:
            assert [one.step for one in errors_of(tmp_path / str(at))] == [back]


@workers(2)
def test_workers_that_drift_at_every_update_are_given_up(tmp_path: Path) -> None:
    with disturbed(5, on_rank(1, drift_away), once=False), pytest.raises(WorldError) as caught:
        rueda.fit(tiny_task(480), RECIPE, folder=tmp_path / "run", progress=False)
    line = str(caught.value)
    assert line.startswith("the workers differ for the 4th time in a row: 0.weight and 3 more of rank 1")
    assert "look for code that depends on the rank" in line and "\n" not in line


@workers(3)
def test_three_that_drift_at_every_update_are_given_up(tmp_path: Path) -> None:
    with disturbed(5, on_rank(1, drift_away), once=False), pytest.raises(WorldError, match="4th time in a row"):
        rueda.fit(tiny_task(480), RECIPE.change(checkpoint_every=None), folder=tmp_path / "run", progress=False)


@workers(2)
def test_without_a_folder_there_is_nothing_to_go_back_to() -> None:
    with disturbed(2, on_rank(1, flip_weight)), pytest.raises(WorldError, match="no checkpoint to go back to: train"):
        rueda.fit(tiny_task(480), RECIPE, progress=False)
    with disturbed(2, on_rank(1, flip_weight)):  # nobody looks
        result = rueda.fit(tiny_task(480), RECIPE.change(compare_every=0), progress=False)
    assert result.status == "finished" and not all_equal(parameters(result.model))


@workers(3)
def test_three_different_workers_have_no_majority() -> None:
    world = current()
    torch.manual_seed(0)
    model = network()
    with torch.no_grad():
        model[0].weight[0, 0] += world.rank  # type: ignore[operator, index, union-attr]
    named = compared_parameters(model)
    found = describe_drift(world, named, checksums(list(named.values()), world.device))
    assert found.source is None and found.ranks == (0, 1, 2) and found.names == ("0.weight",)
    assert f"0.weight of rank 1 ({HOST}), rank 2 ({HOST}) differ from that of rank 0" in found.text


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(RecipeError, match="compare_every: expected 0 or more"):
        Recipe(compare_every=-1)
