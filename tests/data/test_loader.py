from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch

from rueda.data import Arrays, Cutout, EvalLoader, HorizontalFlip, Loader, RandomCrop
from rueda.errors import DataError


@dataclass
class Place:
    """A stand-in for a world: which of how many workers."""

    rank: int = 0
    size: int = 1


def numbers(num: int = 24) -> Arrays:
    """Each example's target is its own number."""
    return Arrays(torch.arange(float(num)).reshape(num, 1), torch.arange(num))


def pictures(num: int = 48, side: int = 8) -> Arrays:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (num, 3, side, side), dtype=torch.uint8, generator=generator)
    return Arrays(inputs, torch.arange(num), mean=[0.4, 0.5, 0.6], std=[0.2, 0.3, 0.4])


AUGMENT = (RandomCrop(2), HorizontalFlip(), Cutout(3))


def epoch_of(loader: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(inputs.clone(), targets) for inputs, targets in loader]


@pytest.mark.parametrize("partition", ["shards", "random"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_n_workers_see_the_global_batches_of_one(size: int, partition: str) -> None:
    """The same examples, augmented in the same way, in every global batch, epoch after epoch."""
    options: dict[str, Any] = {"seed": 5, "partition": partition, "augment": AUGMENT}
    alone = Loader(pictures(), 12, world=Place(), **options)
    together = [Loader(pictures(), 12 // size, world=Place(rank, size), **options) for rank in range(size)]
    for _ in range(2):
        shares = [epoch_of(loader) for loader in together]
        for number, (inputs, targets) in enumerate(epoch_of(alone)):
            for rank in range(size):
                assert torch.equal(shares[rank][number][0], inputs[rank::size])
                assert torch.equal(shares[rank][number][1], targets[rank::size])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_shards_give_every_example_once_and_reshuffle(size: int) -> None:
    loaders = [Loader(numbers(), 4, world=Place(rank, size)) for rank in range(size)]
    orders = []
    for epoch in range(3):
        assert {loader.epoch for loader in loaders} == {epoch}
        seen = [torch.cat([targets for _, targets in loader]).tolist() for loader in loaders]
        assert sorted(chain(*seen)) == list(range(24))
        orders.append(seen)
    assert orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize(("num", "size", "batch"), [(23, 2, 4), (24, 2, 4), (25, 3, 2), (9, 3, 3), (10, 4, 2)])
def test_all_workers_have_the_same_number_of_batches(num: int, size: int, batch: int) -> None:
    for remainder, count in (("drop", num // (size * batch)), ("pad", -(-num // (size * batch)))):
        loaders = [Loader(numbers(num), batch, world=Place(rank, size), remainder=remainder) for rank in range(size)]
        assert {len(loader) for loader in loaders} == {count}
        assert {loader.num_batches_left() for loader in loaders} == {count}
        seen: Counter[int] = Counter()
        for loader in loaders:
            batches = list(loader)
            assert [len(targets) for _, targets in batches] == [batch] * count
            seen.update(torch.cat([targets for _, targets in batches]).tolist())
        if remainder == "pad":
            assert set(seen) == set(range(num)), "padding leaves nobody out"
            assert max(seen.values()) <= 2
        else:
            assert max(seen.values()) == 1


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("partition", ["shards", "random"])
@pytest.mark.parametrize("stop", [0, 1, 3, 6])
def test_a_resumed_loader_goes_on_as_if_never_stopped(stop: int, partition: str, prefetch: int) -> None:
    options: dict[str, Any] = {"seed": 2, "partition": partition, "augment": AUGMENT, "world": Place()}
    whole = Loader(pictures(), 8, **options)
    expected = epoch_of(whole) + epoch_of(whole)
    first = Loader(pictures(), 8, prefetch=prefetch, **options)
    got = []
    for inputs, targets in first if stop else ():
        got.append((inputs.clone(), targets))
        if len(got) == stop:
            break
    state = first.state_dict()
    assert state["position"] == stop * 8, "what is only prepared does not count"
    first.close()
    second = Loader(pictures(), 8, prefetch=prefetch, **{**options, "seed": 77})
    second.load_state_dict(state)
    second.set_epoch(state["epoch"])
    got += epoch_of(second) + epoch_of(second)
    second.close()
    assert len(got) == len(expected)
    for (inputs, targets), (wanted, labels) in zip(got, expected, strict=True):
        assert torch.equal(inputs, wanted)
        assert torch.equal(targets, labels)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (1, 4), (4, 1)])
def test_resuming_on_another_number_of_workers_shows_every_example_once(before: int, after: int) -> None:
    data = numbers(60)
    first = [Loader(data, 12 // before, world=Place(rank, before), prefetch=2) for rank in range(before)]
    seen: list[int] = []
    for loader in first:
        for _ in range(2):
            batch = loader.next_batch()
            assert batch is not None
            seen += batch[1].tolist()
    states = [loader.state_dict() for loader in first]
    assert all(state == states[0] for state in states), "the state is the same on all workers"
    second = [Loader(data, 12 // after, world=Place(rank, after)) for rank in range(after)]
    for loader in second:
        loader.load_state_dict(states[0])
        seen += torch.cat([targets for _, targets in loader]).tolist()
        assert (loader.epoch, loader.position) == (1, 0)
    assert sorted(seen) == list(range(60))
    for loader in first:
        loader.close()


def test_the_batch_can_grow_within_an_epoch() -> None:
    for prefetch in (0, 2):
        loader = Loader(numbers(60), 2, world=Place(), prefetch=prefetch, seed=1)
        order = torch.cat([targets for _, targets in Loader(numbers(60), 60, world=Place(), seed=1)])
        seen = []
        for size in (2, 2, 6, 10, 10, 30):
            batch = loader.next_batch(size)
            assert batch is not None
            assert len(batch[1]) == size
            seen.append(batch[1])
        assert torch.equal(torch.cat(seen), order)
        assert loader.next_batch() is None
        assert (loader.epoch, loader.position) == (1, 0)
        lengths = []
        for _, targets in loader:
            lengths.append(len(targets))
            loader.batch = 20 if len(lengths) >= 10 else 2
        assert lengths == [2] * 10 + [20, 20]
        loader.close()


def test_set_epoch_moves_but_leaves_a_resumed_loader_in_its_place() -> None:
    loader = Loader(numbers(), 6, world=Place())
    third = [epoch_of(loader) for _ in range(3)][2]
    loader.set_epoch(2)
    assert torch.equal(epoch_of(loader)[0][1], third[0][1])
    loader.set_epoch(2)
    loader.next_batch()
    loader.set_epoch(2)
    assert loader.position == 6
    loader.set_epoch(3)
    assert loader.position == 0


def test_batches_equal_a_plain_computation() -> None:
    """Many chunks a batch, wrapped around the end: against one image at a time in plain torch."""
    data = pictures(100, side=40)
    loader = Loader(data, 90, world=Place(), remainder="pad", augment=[HorizontalFlip(1.0)], dtype=torch.float64)
    loader._batcher._chunk = 7
    for inputs, targets in loader:
        for image, target in zip(inputs, targets, strict=True):
            raw = data.inputs[target].double().flip(2) / 255
            mean, std = (torch.tensor(each).double().reshape(3, 1, 1) for each in (data.mean, data.std))
            torch.testing.assert_close(image, (raw - mean) / std, rtol=0, atol=1e-6)


@pytest.mark.parametrize("way", ["send", "device"])
def test_batches_made_for_a_device_equal_those_of_the_host(way: str) -> None:
    """The path of a GPU, walked on the CPU: whole batches through torch's operations, nothing in chunks."""
    augment = (*AUGMENT, RandomCrop(1), HorizontalFlip())
    loaders = [Loader(pictures(), 20, world=Place(1, 2), augment=augment, remainder="pad") for _ in range(2)]
    loaders[1]._batcher.way = way
    for host, device in zip(*loaders, strict=True):
        assert torch.equal(host[0], device[0])
        assert torch.equal(host[1], device[1])
    tests = [EvalLoader(pictures(), 20, world=Place(1, 2)) for _ in range(2)]
    tests[1]._batcher.way = way
    for one, other in zip(*tests, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("lies", ["cpu", "cuda"])
def test_batches_on_a_gpu_equal_those_of_the_cpu(lies: str) -> None:
    here = Loader(pictures(), 8, world=Place(), augment=AUGMENT)
    there = Loader(pictures().to(lies), 8, world=Place(), augment=AUGMENT, device="cuda")
    for (inputs, targets), (images, labels) in zip(here, there, strict=True):
        assert images.device.type == "cuda"
        torch.testing.assert_close(images.cpu(), inputs)
        assert torch.equal(labels.cpu(), targets)
    there.close()


def test_any_function_can_augment() -> None:
    def negative(images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        assert keys.shape == (len(images),)
        return 255 - images

    data = pictures()
    (plain, _), (changed, _) = (next(iter(Loader(data, 48, world=Place(), augment=each))) for each in ((), [negative]))
    mean, std = (torch.tensor(each).reshape(3, 1, 1) for each in (data.mean, data.std))
    torch.testing.assert_close((changed * std + mean), 1 - (plain * std + mean))


class Black(RandomCrop):
    """Derived from one that works in place, and yet called."""

    def __call__(self, images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(images)


def test_a_derived_augmentation_is_called_and_two_of_a_kind_draw_apart() -> None:
    white = Arrays(torch.full((64, 1, 16, 16), 255, dtype=torch.uint8), torch.arange(64))
    black, _ = next(iter(Loader(white, 64, world=Place(), augment=[Black()])))
    assert not black.any()
    once, twice = (next(iter(Loader(white, 64, world=Place(), augment=[Cutout(4)] * times)))[0] for times in (1, 2))
    assert float((twice == 0).float().mean()) > 1.5 * float((once == 0).float().mean())


@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_that_are_held_are_not_overwritten(prefetch: int) -> None:
    loader = Loader(pictures(), 4, world=Place(), prefetch=prefetch)
    again = [inputs.clone() for inputs, _ in Loader(pictures(), 4, world=Place())]
    for (inputs, _), expected in zip(list(loader), again, strict=True):
        assert torch.equal(inputs, expected)
    loader.close()


def test_memory_is_used_again_in_a_loop() -> None:
    addresses = set()
    for inputs, _ in Loader(pictures(), 4, world=Place(), augment=AUGMENT):
        addresses.add(inputs.data_ptr())
    assert len(addresses) == 2, "the one in the loop's hands and the next"


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("rueda-loader")]


@pytest.mark.parametrize("way", ["end", "break", "exception", "close", "interrupt"])
def test_the_prefetch_thread_ends(way: str) -> None:
    def fail(images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        raise {"exception": ValueError, "interrupt": KeyboardInterrupt}[way]("in the thread")

    failing = way in ("exception", "interrupt")
    loader = Loader(pictures(), 4, world=Place(), prefetch=2, augment=[fail] if failing else [])
    if failing:
        came = ""
        try:  # not pytest.raises, which would keep the traceback and with it the loader
            next(iter(loader))
        except (ValueError, KeyboardInterrupt) as error:
            came = str(error)
        assert came == "in the thread"
        assert loader.position == 0, "a batch that did not come does not count"
    else:
        for _ in loader:
            if way != "end":
                break
    assert loader_threads()
    if way == "close":
        loader.close()
        loader.close()
    else:
        threads = loader_threads()
        del loader
        gc.collect()
        for thread in threads:
            thread.join(timeout=10)
    assert not loader_threads()


INTERRUPTED = """
import torch
from rueda.data import Arrays, HorizontalFlip, Loader

data = Arrays(torch.zeros(4096, 3, 32, 32, dtype=torch.uint8), torch.zeros(4096, dtype=torch.int64))
loader = Loader(data, 512, prefetch=3, augment=[HorizontalFlip()])
print("ready", flush=True)
while True:
    for _ in loader:
        pass
"""


def test_ctrl_c_ends_a_process_that_prefetches() -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert process.returncode == -signal.SIGINT


def test_evaluation_on_n_workers_equals_one() -> None:
    data = pictures(47)
    alone = list(EvalLoader(data, 10, world=Place()))
    assert [len(targets) for _, targets, _ in alone] == [10, 10, 10, 10, 7]
    assert torch.cat([targets for _, targets, _ in alone]).tolist() == list(range(47))
    for size in (2, 3, 4):
        loaders = [EvalLoader(data, 10, world=Place(rank, size)) for rank in range(size)]
        batches = [list(loader) for loader in loaders]
        assert {len(each) for each in batches} == {len(loaders[0])}
        total = sum(float((inputs.mean((1, 2, 3)) * weights).sum()) for each in batches for inputs, _, weights in each)
        expected = sum(float(inputs.mean((1, 2, 3)).sum()) for inputs, _, _ in alone)
        assert total == pytest.approx(expected, rel=1e-5)
        counted = Counter(
            int(t)
            for each in batches
            for _, targets, weights in each
            for t, w in zip(targets, weights, strict=True)
            if w
        )
        assert counted == Counter(range(47))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Loader(numbers(10), 11, world=Place()), "at most the 10 examples"),
        (lambda: Loader(numbers(10), 4, world=Place(0, 3)), "4 on each of 3 workers"),
        (lambda: Loader(numbers(10), 1, world=Place(0, 11)), "fewer workers"),
        (lambda: Loader(numbers(10), 0, world=Place()), "1 or more"),
        (lambda: Loader(numbers(10), 1, world=Place(2, 2)), "from 0 to 1"),
        (lambda: Loader(numbers(10), 1, world=Place(), partition="x"), "shards or random"),
        (lambda: Loader(numbers(10), 1, world=Place(), remainder="x"), "drop or pad"),
        (lambda: Loader(numbers(10), 1, world=Place(), prefetch=-1), "0 or more"),
        (lambda: Loader(numbers(10), 1, world=Place()).set_epoch(-1), "0 or more"),
        (lambda: Loader(numbers(10), 1, world=Place()).next_batch(11), "at most the 10"),
        (lambda: Loader(numbers(10), 1, world=Place()).load_state_dict({"epoch": 1}), "num_examples, partition"),
        (
            lambda: Loader(numbers(10), 1, world=Place()).load_state_dict(
                Loader(numbers(9), 1, world=Place()).state_dict()
            ),
            "one of 10 examples",
        ),
        (lambda: next(iter(Loader(numbers(10), 1, world=Place(), augment=[RandomCrop()]))), "images"),
        (lambda: EvalLoader(numbers(10), 0, world=Place()), "1 or more"),
        (lambda: EvalLoader(3, 1), "expected rueda.Arrays, a data set or a stream, got 'int'"),
        (lambda: EvalLoader(numbers(10), 1, world=Place(3, 2)), "from 0 to 1"),
    ],
)
def test_mistakes_are_refused(make: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()


def test_order_does_not_depend_on_the_state_of_any_generator() -> None:
    def targets() -> list[int]:
        return torch.cat([targets for _, targets in Loader(numbers(), 4, world=Place(), seed=3)]).tolist()

    first = targets()
    torch.manual_seed(99)
    np.random.default_rng(1).random()
    assert targets() == first


def test_what_is_no_data_gets_a_line() -> None:
    with pytest.raises(DataError, match=r"expected rueda.Arrays, a torch Dataset, .* got 'int'"):
        Loader(3, batch=2)
