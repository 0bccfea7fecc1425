"""Streams: divided among workers and loader processes, every example once, resumed at any step."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from harness import workers
from rueda.data import Loader
from rueda.data.iterable_loader import IterableLoader
from rueda.data.shuffle_buffer import ShuffleBuffer, contents_at
from rueda.errors import DataError
from rueda.world import current

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")


@dataclass
class Place:
    rank: int = 0
    size: int = 1


class Plain(IterableDataset[int]):
    """A stream that knows nothing of workers; it draws random numbers, as a set with its own shuffle does."""

    def __init__(self, num: int = 47) -> None:
        self.num = num

    def __iter__(self) -> Iterator[int]:
        numbers = list(range(self.num))
        random.shuffle(numbers)
        return iter(numbers)


class Aware(IterableDataset[int]):
    """A stream that divides itself among loaders in the usual way, unevenly: by shards of different length."""

    def __init__(self, num: int = 47) -> None:
        self.num = num

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        number, total = (0, 1) if info is None else (info.id, info.num_workers)
        bounds = [0, 5, 9, 20, 22, 30, 41, self.num]
        for shard in range(number, len(bounds) - 1, total):
            yield from range(bounds[shard], bounds[shard + 1])


class Stateful(Plain):
    """A stream that continues from its own state; reading all of it again would be noticed."""

    def __init__(self, num: int = 1500) -> None:
        super().__init__(num)
        self.start, self.next, self.num_read = 0, 0, 0

    def __iter__(self) -> Iterator[float]:  # type: ignore[override]
        self.next, self.start = self.start, 0
        while self.next < self.num:
            self.next += 1
            self.num_read += 1
            yield self.next - 1 + random.random() / 2

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["next"]


def loaders(dataset: Any, batch: int, size: int, **options: Any) -> list[IterableLoader]:
    made = [Loader(dataset, batch, world=Place(rank, size), **options) for rank in range(size)]
    assert all(isinstance(each, IterableLoader) for each in made)
    return made  # type: ignore[return-value]


def epoch_of(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize(("shuffle", "num_workers"), [(0, 0), (10, 0), (1000, 0), (10, 2)])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_n_workers_see_the_global_batches_of_one(size: int, shuffle: int, num_workers: int) -> None:
    [alone] = loaders(Plain(), 12, 1, seed=5, shuffle=shuffle)
    together = loaders(Plain(), 12 // size, size, seed=5, shuffle=shuffle, num_workers=num_workers)
    orders = []
    for _ in range(2):
        whole = epoch_of(alone)
        assert len(whole) == 3
        shares = [epoch_of(loader) for loader in together]
        for rank in range(size):
            assert shares[rank] == [batch[rank::size] for batch in whole]
        orders.append(whole)
    assert orders[0] != orders[1]
    assert {(loader.epoch, loader.position, loader.divide) for loader in together} == {(2, 0, "examples")}


@pytest.mark.parametrize("remainder", ["drop", "pad", "short"])
@pytest.mark.parametrize(
    ("size", "batch", "num", "num_workers"),
    [(1, 4, 23, 0), (2, 4, 23, 0), (3, 2, 25, 0), (3, 4, 13, 0), (2, 3, 12, 0), (2, 4, 23, 2)],
)
def test_every_example_once_and_the_same_number_of_batches(
    size: int, batch: int, num: int, num_workers: int, remainder: str
) -> None:
    made = loaders(Plain(num), batch, size, num_workers=num_workers, remainder=remainder)
    batches = [epoch_of(loader) for loader in made]
    assert len({tuple(map(len, each)) for each in batches}) == 1
    assert len(batches[0]) == len(made[0])
    seen = Counter(number for each in batches for one in each for number in one)
    if remainder == "drop":
        assert seen.total() == num // (batch * size) * batch * size and max(seen.values()) == 1
    else:
        assert set(seen) == set(range(num)) and max(seen.values()) <= (2 if remainder == "pad" else size)
        extra = (batch * size - num % (batch * size)) % (batch * size) if remainder == "pad" else -num % size
        assert seen.total() == num + extra


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_data_set_that_divides_itself_is_told_of_all_loaders(size: int, num_workers: int) -> None:
    made = loaders(Aware(), 2, size, num_workers=num_workers, remainder="short", shuffle=3)
    seen: list[int] = []
    for loader in made:
        # Without a process group each worker goes on to the end of its own share.
        seen += [number for batch in epoch_of(loader) for number in batch]
    assert sorted(seen) == list(range(47))
    assert {loader.divide for loader in made} == {"shards" if size * max(1, num_workers) > 1 else "examples"}


def states(loader: Any, num: int) -> tuple[list[list[float]], dict[str, Any]]:
    got = []
    for _ in range(num):
        batch = loader.next_batch()
        assert batch is not None
        got.append(batch.tolist())
    return got, loader.state_dict()


@pytest.mark.parametrize(("stop", "num_workers"), [*((stop, 0) for stop in range(8)), (3, 2), (6, 2)])
@pytest.mark.parametrize("kind", [Plain, Aware])
def test_a_resumed_stream_goes_on_as_if_never_stopped(kind: Any, stop: int, num_workers: int) -> None:
    options: dict[str, Any] = {"seed": 2, "shuffle": 9, "num_workers": num_workers, "remainder": "short"}
    for rank, size in ((0, 1), (1, 2)) if num_workers == 0 else ((1, 2),):
        whole = Loader(kind(), 3, world=Place(rank, size), **options)
        expected = epoch_of(whole)
        expected += epoch_of(whole)
        got, state = states(Loader(kind(), 3, world=Place(rank, size), **options), min(stop, len(expected) // 2))
        again = Loader(kind(), 3, world=Place(rank, size), **{**options, "seed": 77})
        again.load_state_dict(state)
        assert again.state_dict() == state
        got += epoch_of(again)
        got += epoch_of(again)
        assert got == expected


@dataclass
class Uneven:
    """Three shards of different length, which the data set divides among the loaders itself."""

    lengths: tuple[int, ...] = (4, 7, 20)

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        number, total = (0, 1) if info is None else (info.id, info.num_workers)
        for shard in range(number, len(self.lengths), total):
            yield from range(100 * shard, 100 * shard + self.lengths[shard])


def shares_of(loader: Loader) -> list[Any]:
    """Return what each virtual worker reads in the rest of the epoch."""
    found = []
    while (parts := loader.next_parts(2)) is not None:
        found.append([[part.tolist() for part in worker] for worker in parts])
    return found


@pytest.mark.parametrize("stop", range(1, 10))
def test_a_share_that_is_read_again_goes_on_as_if_never_stopped(stop: int) -> None:
    """Shares that end early are read again, each from its own start, and go on there after a resume."""

    def loader() -> Loader:
        made = Loader(Uneven(), 6, world=Place(), shuffle=0, divide="shards", remainder="pad")
        made.read_for_workers(3, lambda rank: nullcontext())
        return made

    whole = shares_of(loader())
    assert len(whole) == 10 and [one[0][0][0] for one in whole] == [0, 2] * 5
    assert [one[1][0][0] for one in whole] == [100, 102, 104, 106, 100, 102, 104, 106, 100, 102]
    stopped, resumed = loader(), loader()
    for _ in range(stop):
        stopped.next_parts(2)
    resumed.load_state_dict(stopped.state_dict())
    assert shares_of(resumed) == whole[stop:]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3), (3, 1)])
def test_a_stream_divided_by_examples_is_resumed_on_another_number_of_workers(before: int, after: int) -> None:
    first = loaders(Plain(48), 12 // before, before)
    stopped = [states(loader, 2) for loader in first]
    assert all(state["position"] == 24 for _, state in stopped)
    seen = [number for got, _ in stopped for batch in got for number in batch]
    for loader in loaders(Plain(48), 12 // after, after):
        loader.load_state_dict(stopped[0][1] | {"loaders": stopped[0][1]["loaders"]})
        seen += [number for batch in epoch_of(loader) for number in batch]
    assert sorted(seen) == list(range(48))


def test_a_stream_that_divides_itself_is_not_resumed_on_another_number_of_workers() -> None:
    _, state = states(loaders(Aware(), 2, 2)[0], 2)
    with pytest.raises(DataError, match=r"2 workers with 1 loader processes each.*got '3 and 1'"):
        loaders(Aware(), 2, 3)[0].load_state_dict(state)


@pytest.mark.parametrize(("shuffle", "num_workers"), [(0, 0), (100, 0), (100, 2)])
@pytest.mark.parametrize("stop", [1, 60, 117, 124])
def test_a_data_set_with_states_is_not_read_from_the_start(stop: int, shuffle: int, num_workers: int) -> None:
    options: dict[str, Any] = {"shuffle": shuffle, "world": Place(1, 2), "num_workers": num_workers, "seed": 3}
    whole = Loader(Stateful(), 6, **options)
    expected = epoch_of(whole) + epoch_of(whole)
    got, state = states(Loader(Stateful(), 6, **options), stop)
    again = Loader(Stateful(), 6, **options)
    again.load_state_dict(state)
    rest = epoch_of(again)
    first_epoch = again.dataset.num_read
    rest += epoch_of(again)
    assert got + rest == expected
    if not num_workers:  # else the processes count
        assert 0 < first_epoch <= 1500 - 12 * stop + max(512, 20 * shuffle)
        assert stop < 100 or first_epoch < 1000


@pytest.mark.parametrize("kind", [Plain, Aware])
def test_a_batch_may_change_within_an_epoch(kind: Any) -> None:
    [loader] = loaders(kind(), 4, 1, remainder="short")
    lengths, seen = [], []
    for size in (4, 4, 8, 8, 3):
        batch = loader.next_batch(size)
        lengths.append(len(batch))
        seen += batch.tolist()
    state = loader.state_dict()
    [again] = loaders(kind(), 4, 1, remainder="short")
    again.load_state_dict(state)
    for each in (loader, again):
        assert sorted(seen + [number for batch in epoch_of(each) for number in batch]) == list(range(47))
    assert lengths == [4, 4, 8, 8, 3]


def test_a_data_set_that_divides_itself_may_change_its_batch_and_resume() -> None:
    def some(loader: Any) -> list[int]:
        return [number for size in (2, 2, 3) for number in loader.next_batch(size).tolist()]

    options: dict[str, Any] = {"num_workers": 2, "world": Place(0, 2), "remainder": "short", "shuffle": 0}
    first = Loader(Aware(), 2, **options)
    begun, state = some(first), first.state_dict()
    rest = [number for batch in epoch_of(first) for number in batch]
    again = Loader(Aware(), 2, **options)
    again.load_state_dict(state)
    assert [number for batch in epoch_of(again) for number in batch] == rest
    other = [number for batch in epoch_of(Loader(Aware(), 2, **{**options, "world": Place(1, 2)})) for number in batch]
    assert sorted(begun + rest + other) == list(range(47))


def noisy(examples: list[int]) -> torch.Tensor:
    return torch.tensor(examples) + torch.rand(len(examples)) / 2


@pytest.mark.parametrize("kind", [Plain, Aware])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("micro", [2, 3])
def test_a_rehearsal_reads_what_real_workers_read(kind: Any, size: int, micro: int) -> None:
    """Micro-batches of each virtual worker, with the random numbers of its collate function."""
    options: dict[str, Any] = {"collate_fn": noisy, "seed": 8}
    [rehearsed] = loaders(kind(), 4 * size, 1, **options)
    rehearsed.read_for_workers(size, lambda rank: pytest.fail("a stream has its own random numbers"))
    real = loaders(kind(), 4, size, **options)
    for _ in range(2):
        num = 0
        while (found := rehearsed.next_parts(micro)) is not None:
            num += 1
            parts = [loader.next_parts(micro) for loader in real]
            assert [[part.tolist() for part in worker] for worker in found] == [
                [part.tolist() for part in worker] for own in parts if own is not None for worker in own
            ]
            assert [len(part) for part in found[0]] == [micro, 4 - micro]
        assert num >= 2
        for loader in real:
            loader.set_epoch(rehearsed.epoch)


def test_loaders_of_one_data_set_with_states_do_not_disturb_each_other() -> None:
    """The second began where the first had come to, at worst at the end, with a length of 0."""
    dataset = Stateful(40)
    first, second = (Loader(dataset, 4, shuffle=0, world=Place()) for _ in range(2))
    reading, other = iter(first), iter(second)
    begun = [next(reading).tolist() for _ in range(3)]
    late = Loader(dataset, 4, shuffle=0, world=Place())
    assert late.num_examples == 40
    interleaved = [(next(reading).tolist(), next(other).tolist()) for _ in range(7)]
    begun += [one for one, _ in interleaved]
    assert [int(number) for batch in begun for number in batch] == list(range(40))
    assert [int(number) for _, batch in interleaved for number in batch] == list(range(28))
    assert [int(number) for batch in epoch_of(late) for number in batch] == list(range(40))


def test_reading_does_not_change_the_random_numbers_of_the_training() -> None:
    [loader] = loaders(Plain(), 4, 1, collate_fn=noisy)
    torch.manual_seed(1)
    random.seed(1)
    expected = torch.rand(2), random.random()
    torch.manual_seed(1)
    random.seed(1)
    first = loader.next_batch().tolist()
    assert torch.equal(torch.rand(2), expected[0]) and random.random() == expected[1]
    [again] = loaders(Plain(), 4, 1, collate_fn=noisy)
    assert again.next_batch().tolist() == first


def test_the_length_is_counted_when_it_is_asked_for() -> None:
    [loader] = loaders(Plain(23), 4, 1)
    assert loader.state_dict()["num_examples"] is None
    assert loader.num_examples == 23 and len(loader) == 5 and not loader.epoch_ended
    assert len(epoch_of(loader)) == 5
    assert loaders(Plain(23), 4, 1, num_examples=99)[0].num_examples == 99


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
@pytest.mark.parametrize(("kind", "divide"), [(Plain, None), (Aware, None), (Aware, "ranks")])
def test_all_examples_are_counted_whatever_the_loader_processes(
    kind: Any, divide: str | None, num_workers: int
) -> None:
    """With two processes, every second block of 1,024 examples was not counted: schedules ended too early."""
    [loader] = loaders(kind(5000), 4, 1, num_workers=num_workers, divide=divide)
    assert loader.num_examples == 5000 and len(loader) == 1250


def test_the_length_of_a_stream_that_was_divided_by_rank_is_that_of_all_ranks() -> None:
    assert [loader.num_examples for loader in loaders(Plain(10), 2, 3, divide="ranks")] == [30, 30, 30]


def test_the_end_of_an_epoch_is_known_before_the_next_batch() -> None:
    [loader] = loaders(Plain(12), 4, 1)
    ended = [loader.epoch_ended]
    for _ in range(3):
        loader.next_parts(2)
        ended.append(loader.epoch_ended)
    assert ended == [False, False, False, True]
    [again] = loaders(Plain(12), 4, 1)
    again.load_state_dict(loader.state_dict())
    assert again.epoch_ended
    again.set_epoch(1)
    assert not again.epoch_ended and (again.epoch, again.position) == (1, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Loader(Plain(3), 4, world=Place()).next_batch(), "at least a global batch in an epoch"),
        (lambda: Loader(Plain(0), 4, world=Place(), remainder="pad").next_batch(), "an example on every worker"),
        (lambda: Loader((i for i in range(3)), 1, world=Place()), "that can be read every epoch, got 'generator'"),
        (lambda: Loader(Plain(), 0, world=Place()), "1 or more"),
        (lambda: Loader(Plain(), 1, world=Place(), shuffle=-1), "0 or more examples"),
        (lambda: Loader(Plain(), 1, world=Place(), divide="x"), "examples or shards or ranks"),
        (lambda: Loader(Plain(), 1, world=Place(), partition="random"), "shards for a stream"),
        (lambda: Loader(Plain(), 1, world=Place(), augment=()), "arguments for this kind of data"),
        (lambda: Loader(Plain(), 1, world=Place()).load_state_dict({"epoch": 1}), "divide, loaders, num_examples"),
        (lambda: Loader(Plain(), 1, world=Place()).next_parts(0), "1 or more"),
    ],
)
def test_mistakes_are_refused(make: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_the_contents_of_a_shuffle_buffer_are_known_without_the_data(size: int) -> None:
    for num_drawn in (0, 1, 5, 30, 39):
        buffer = ShuffleBuffer(iter(range(40)), size, key=5)
        for _ in range(num_drawn):
            next(buffer)
        rest = list(buffer)
        contents, num_read = contents_at(num_drawn, size, 5, 40)
        held = [(number, number) for number in contents]
        again = ShuffleBuffer(iter(range(num_read, 40)), size, 5, contents=held, num_drawn=num_drawn, num_read=num_read)
        assert list(again) == rest


@workers(2)
def test_two_workers_agree_where_uneven_shards_end() -> None:
    world = current()
    for remainder in ("drop", "short", "pad"):
        loader = Loader(Aware(), 3, remainder=remainder)
        for _ in range(2):
            mine = []
            for batch in loader:
                world.barrier()  # hangs unless all have the same number of batches
                mine.append(batch.tolist())
            everybody = world.all_gather_object(mine)
            assert len({len(each) for each in everybody}) == 1
            seen = Counter(number for each in everybody for batch in each for number in batch)
            if remainder == "drop":
                assert max(seen.values()) == 1
            else:
                assert set(seen) == set(range(47)), "nobody is left out"
        assert len({str(state) for state in world.all_gather_object(loader.state_dict())}) == 1


@workers(3)
def test_three_workers_share_a_stream() -> None:
    world = current()
    loader = Loader(Plain(), 3, remainder="short")
    for _ in range(2):
        mine = []
        for batch in loader:
            mine += batch.tolist()
            world.barrier()
        everybody = [number for each in world.all_gather_object(mine) for number in each]
        assert set(everybody) == set(range(47)) and len(everybody) == 48


@workers(2)
def test_workers_agree_even_if_their_streams_differ() -> None:
    """A stream that is not the same on all workers must not leave one of them waiting."""
    world = current()
    for remainder in ("drop", "short"):
        loader = Loader(Plain(20 + 9 * world.rank), 2, remainder=remainder)
        counts = world.all_gather_object(sum(world.barrier() is None for _ in loader))
        assert counts == [5, 5] if remainder == "drop" else counts[0] == counts[1] == 8
