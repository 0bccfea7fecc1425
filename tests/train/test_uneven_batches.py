"""A global batch that the workers cannot divide evenly: the same examples and the same updates as on any number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from harness import workers
from rueda.data import Loader
from rueda.errors import DataError
from rueda.optim import AdaScale
from rueda.records import Recipe
from rueda.tasks.step import Losses
from rueda.train.training import Training
from rueda.world import World, current
from tinytask import network, parameters, tiny_task

EXACT: dict[str, Any] = {"precision": "float64", "recalibrate": "never"}


class Place:
    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


@pytest.mark.parametrize(("total", "size"), [(8, 3), (5, 4), (4, 4), (7, 1)])
@pytest.mark.parametrize("remainder", ["drop", "pad"])
@pytest.mark.parametrize("kind", ["data set", "arrays"])
def test_each_example_of_an_epoch_is_of_one_worker(total: int, size: int, remainder: str, kind: str) -> None:
    from rueda import Arrays

    numbers = list(range(30))
    data: Any = numbers if kind == "data set" else Arrays(torch.arange(30.0)[:, None], torch.arange(30))
    loaders = [Loader(data, 1, world=Place(rank, size), seed=3, remainder=remainder) for rank in range(size)]
    whole = Loader(data, 1, world=Place(0, 1), seed=3, remainder=remainder)
    for one in (*loaders, whole):
        one.global_batch = total
    while (expected := whole.next_batch()) is not None:
        found = [one.next_batch() for one in loaders]
        shares = [(batch if kind == "data set" else batch[1]).tolist() for batch in found]
        together = [number for share in shares for number in share]
        assert sorted(together) == sorted((expected if kind == "data set" else expected[1]).tolist())
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        assert {one.position for one in loaders} == {whole.position}
        assert [one.epoch_ended for one in loaders] == [whole.epoch_ended] * size
    assert all(one.next_batch() is None for one in loaders)


def test_every_worker_needs_an_example() -> None:
    loader = Loader(list(range(9)), 1, world=Place(0, 3))
    with pytest.raises(DataError, match=r"an example for each of 3 workers, got 2; use fewer workers \(--max-np\)"):
        loader.global_batch = 2
    with pytest.raises(DataError, match="at most the 9 examples that there are, got 10"):
        loader.global_batch = 10


def weighted(model: torch.nn.Module, batch: Any) -> Losses:
    inputs, targets = batch
    outputs = model(inputs)
    losses = torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
    return Losses(losses, 1.0 + targets, outputs)


RECIPES = {
    "plain": Recipe(batch=8, rate=0.1, momentum=0.9, **EXACT),
    "accumulated": Recipe(batch=2, accumulate=4, rate=0.1, clip=0.5, **EXACT),
    "adam": Recipe(batch=8, optimizer="adam", rate=0.01, ema_decay=0.9, **EXACT),
    "growing": Recipe(batch=8, rate=0.1, growth_factor=2, milestones=(1,), epochs=2, **EXACT),
    "weighted": Recipe(batch=8, rate=0.1, **EXACT),
}


@pytest.mark.parametrize("name", RECIPES)
@workers(3)
def test_updates_are_those_of_any_number_of_workers(name: str) -> None:
    """The global batch of two workers (16, then 32 examples) on three gives the parameters that one worker has."""
    task, recipe = tiny_task(80), RECIPES[name].change(workers=2)
    if name == "weighted":
        task = replace(task, step=weighted)
    here = Training(task, recipe, current())
    alone = Training(task, recipe, World())
    for _ in range(8):
        found, expected = here.step(), alone.step()
        assert (found.num_examples, found.rate) == (expected.num_examples, expected.rate)
        for job, result in ((here, found), (alone, expected)):
            if result.epoch_ended:
                job.end_epoch()
    assert here.state.examples == alone.state.examples > 0
    torch.testing.assert_close(parameters(here.model), parameters(alone.model), rtol=0, atol=1e-12)


def test_adascale_knows_the_size_of_a_part() -> None:
    """Four equal parts of pure noise with |g|² = 4 each: as two parts, each is the mean of two, with |g|² = 2."""
    gains = []
    for norms, num_parts in (([4.0] * 4, 4), ([2.0] * 2, 2)):
        parameter = torch.nn.Parameter(torch.ones(1))
        optimizer = AdaScale(torch.optim.SGD([parameter], lr=0.1), scale=4, smoothing=0.0)
        optimizer.observe_sum(sum(norms), 1.0, num_parts=num_parts)
        gains.append(optimizer.gain)
    assert gains == [4.0, 4.0]


@workers(3)
def test_adascale_on_other_workers_than_the_recipes() -> None:
    task, recipe = tiny_task(80), Recipe(workers=2, batch=8, rate=0.1, adascale=True, **EXACT)
    for world in (current(), World()):
        job = Training(task, recipe, world)
        for _ in range(4):
            job.step()
        assert isinstance(job.optimizer, AdaScale) and 1.0 < job.optimizer.gain <= 2.0, world


def test_ghosts_of_a_share_that_they_do_not_divide() -> None:
    task = replace(tiny_task(96), model=lambda: network(batch_norm=True))
    job = Training(task, Recipe(workers=3, batch=16, ghost_batch=5, rate=0.1), World())
    job.step()
    assert job.updater.micro_batch == 16 and torch.isfinite(parameters(job.model)).all()
