"""``world.loader``: a user's own DataLoader, divided among the workers."""

from __future__ import annotations

import gc
import multiprocessing
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)  # fmt: skip
from torch.utils.data.distributed import DistributedSampler

import rueda
from harness import workers
from rueda.data import EvalLoader, Loader
from rueda.data.dataloader import share_dataloader
from rueda.errors import DataError
from rueda.world import World, current

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")
NUMBERS = TensorDataset(torch.arange(47))


@dataclass
class Place:
    rank: int = 0
    size: int = 1


class Counting(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(47))


class Batches(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(48).split(4))


class Buckets(Sampler[list[int]]):
    """A batch sampler of its own: batches of different sizes, drawn anew in each epoch."""

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(47).tolist()
        return iter([order[:9], order[9:14], order[14:30], order[30:38], order[38:46], order[46:]])

    def __len__(self) -> int:
        return 6


def collate(examples: list[Any]) -> dict[str, Any]:
    return {"ids": torch.tensor([int(each[0] if isinstance(each, tuple) else each) for each in examples]), "own": 1}


def numbers(batch: Any) -> list[int]:
    while not isinstance(batch, torch.Tensor):
        batch = batch["ids"] if isinstance(batch, dict) else batch[0]
    return [int(each) for each in batch]


def shares(make: Any, size: int, epochs: int = 1) -> list[list[list[int]]]:
    """The batches of each worker in the last of some epochs."""
    found = []
    for rank in range(size):
        loader = share_dataloader(make(), world=Place(rank, size), seed=3)
        for _ in range(epochs):
            batches = [numbers(batch) for batch in loader]
        found.append(batches)
        loader.close()
    return found


KINDS: dict[str, tuple[Any, bool]] = {
    "shuffled": (lambda: DataLoader(NUMBERS, 4, shuffle=True), True),
    "in order": (lambda: DataLoader(NUMBERS, 4), False),
    "own collate": (lambda: DataLoader(NUMBERS, 4, shuffle=True, collate_fn=collate), True),
    "processes": (lambda: DataLoader(NUMBERS, 4, shuffle=True, num_workers=2, collate_fn=collate), True),
    "own generator": (lambda: DataLoader(NUMBERS, 4, shuffle=True, generator=torch.Generator()), True),
    "distributed": (lambda: DataLoader(NUMBERS, 4, sampler=DistributedSampler(NUMBERS, 5, 2)), True),
    "subset": (lambda: DataLoader(NUMBERS, 4, sampler=SubsetRandomSampler(range(47))), True),
    "subset in processes": (
        lambda: DataLoader(NUMBERS, 4, sampler=SubsetRandomSampler(range(47)), num_workers=2), True
    ),
    "own batch sampler": (lambda: DataLoader(NUMBERS, batch_sampler=Buckets()), True),
    "stream": (lambda: DataLoader(Counting(), 4), False),
    "stream in processes": (lambda: DataLoader(Counting(), 4, num_workers=2, collate_fn=collate), False),
    "batch sampler of torch": (
        lambda: DataLoader(NUMBERS, batch_sampler=BatchSampler(RandomSampler(NUMBERS), 4, False)), True
    ),
}  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_every_example_once_an_epoch(kind: str, size: int) -> None:
    make, shuffles = KINDS[kind]
    first, second = shares(make, size), shares(make, size, epochs=2)
    for found in (first, second):
        assert len({len(batches) for batches in found}) == 1, "as many batches on all workers"
        seen = Counter(number for batches in found for batch in batches for number in batch)
        most_repeated = (size - 1) * (1 if kind != "own batch sampler" else 16)
        assert set(seen) == set(range(47)) and seen.total() <= 47 + most_repeated
    assert (first != second) == shuffles


@pytest.mark.parametrize("kind", KINDS)
def test_n_workers_see_the_global_batches_of_one(kind: str) -> None:
    if kind == "own batch sampler":
        alone = shares(KINDS[kind][0], 1)[0]
        assert shares(KINDS[kind][0], 2) == [alone[0::2], alone[1::2]]
        return
    alone = [number for batch in shares(KINDS[kind][0], 1)[0] for number in batch]
    for rank, batches in enumerate(shares(KINDS[kind][0], 2)):
        for number, batch in enumerate(batches[:-1]):
            assert batch == alone[number * 8 : number * 8 + 8][rank::2]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_resumed_at_any_step(kind: str) -> None:
    make, _ = KINDS[kind]
    for stop in (1, 3) if "processes" not in kind else (2,):
        loader = share_dataloader(make(), world=Place(1, 2))
        for _ in range(stop):
            loader.next_batch()
        state = loader.state_dict()
        expected = [numbers(batch) for batch in loader] + [numbers(batch) for batch in loader]
        again = share_dataloader(make(), world=Place(1, 2))
        again.load_state_dict(state)
        assert [numbers(batch) for batch in again] + [numbers(batch) for batch in again] == expected


def test_it_yields_what_the_dataloader_yields_on_one_worker() -> None:
    """Of a DataLoader that does not shuffle, the very same batches, the short last one included."""
    for make in (lambda: DataLoader(NUMBERS, 4), lambda: DataLoader(Counting(), 4, collate_fn=collate),
                 lambda: DataLoader(NUMBERS, 5, drop_last=True), lambda: DataLoader(Batches(), None)):  # fmt: skip
        own = World().loader(make())
        for _ in range(2):
            assert [numbers(batch) for batch in own] == [numbers(batch) for batch in make()]
    assert type(next(iter(World().loader(DataLoader(NUMBERS, 4, collate_fn=collate))))) is dict


def test_a_sampler_with_replacement_is_kept() -> None:
    sampler = WeightedRandomSampler([0.0] * 40 + [1.0] * 7, num_samples=24)
    found = shares(lambda: DataLoader(NUMBERS, 4, sampler=sampler), 2)
    assert [len(batches) for batches in found] == [3, 3]
    assert {number for batches in found for batch in batches for number in batch} <= set(range(40, 47))


def test_whole_batches_of_a_data_set_are_shared() -> None:
    found = shares(lambda: DataLoader(Batches(), batch_size=None), 3)
    assert sorted(number for batches in found for batch in batches for number in batch) == list(range(48))
    assert all(len(batches) == 4 for batches in found)


def remember(number: int) -> None:
    np.random.seed(1000 + number)


class Noisy(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        return index, np.random.rand()


def test_worker_init_fn_runs_in_its_processes() -> None:
    options: dict[str, Any] = {"num_workers": 1, "worker_init_fn": remember, "prefetch_factor": 3}
    loader = share_dataloader(DataLoader(Noisy(torch.arange(8)), 4, **options), world=Place())
    np.random.seed(1000)
    _, drawn = loader.next_batch()
    assert drawn.tolist() == np.random.rand(4).tolist()


def test_the_batch_size_can_be_another_one() -> None:
    loader = share_dataloader(DataLoader(NUMBERS, 4, shuffle=True), world=Place(), batch=10, remainder="drop")
    assert [len(numbers(batch)) for batch in loader] == [10] * 4


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_batch_can_be_that_of_all_workers(size: int) -> None:
    def batches(place: Place) -> list[list[int]]:
        dataloader = DataLoader(NUMBERS, 12, shuffle=True)
        return [numbers(batch) for batch in share_dataloader(dataloader, world=place, seed=5, split_batch=True)]

    whole, parts = batches(Place()), [batches(Place(rank, size)) for rank in range(size)]
    for number, batch in enumerate(whole[:3]):
        assert {len(part[number]) for part in parts} == {12 // size}
        assert sorted(each for part in parts for each in part[number]) == sorted(batch)
    assert numbers(next(iter(World().loader(DataLoader(NUMBERS, 12), split_batch=True)))) == list(range(12))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: share_dataloader(DataLoader(NUMBERS, 4), world=Place(0, 3), split_batch=True),
            "batch_size: expected a multiple of the 3 workers, got 4; choose another",
        ),
        (lambda: World().loader(DataLoader(Batches(), None), split_batch=True), "a DataLoader with a batch_size"),
        (lambda: World().loader(NUMBERS), "expected a torch DataLoader, got 'TensorDataset'; use rueda.Loader"),
        (lambda: Loader(DataLoader(NUMBERS), 4), "use world.loader"),
        (lambda: EvalLoader(DataLoader(Batches(), None)), "a DataLoader with a batch_size"),
        (lambda: EvalLoader(3, 4), "rueda.Arrays, a data set or a stream"),
        (lambda: EvalLoader(NUMBERS), "1 or more"),
    ],
)
def test_mistakes_are_refused(make: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("kind", ["data set", "processes", "stream", "dataloader"])
def test_evaluation_counts_every_example_once(kind: str, size: int) -> None:
    data: Any = {"stream": Counting(), "dataloader": DataLoader(NUMBERS, 5, collate_fn=collate)}.get(kind, NUMBERS)
    for num, batch in ((47, 5), (47, 100)):
        seen: Counter[int] = Counter()
        lengths = set()
        for rank in range(size):
            options: dict[str, Any] = {"num_workers": 1} if kind == "processes" else {}
            loader = EvalLoader(data, batch, world=Place(rank, size), **options)
            found = list(loader.batches())
            lengths.add(tuple(len(weights) for _, weights in found))
            for items, weights in found:
                for number, weight in zip(numbers(items), weights.tolist(), strict=True):
                    seen[number] += int(weight)
            assert len(list(loader)) == len(found), "it can be read again"
        assert len(lengths) == 1 and seen == Counter(range(num))


def test_the_batches_of_an_evaluation_are_followed_by_their_weights() -> None:
    pairs = TensorDataset(torch.zeros(3, 2), torch.arange(3))
    assert [len(parts) for parts in EvalLoader(pairs, 2)] == [3, 3]
    assert [len(parts) for parts in EvalLoader(Counting(), 40, collate_fn=collate)] == [2, 2]


@workers(2)
def test_two_workers_share_a_dataloader_and_continue_from_a_checkpoint(tmp_path: Any) -> None:
    world = current()
    for dataset in (NUMBERS, Counting()):
        folder = tmp_path / type(dataset).__name__
        seen = []
        for epochs in (1, 3):
            loader = world.loader(DataLoader(dataset, 4, shuffle=dataset is NUMBERS))
            model = torch.nn.Linear(1, 1)
            for _ in rueda.Checkpoint(folder, model=model, loader=loader).epochs(epochs):
                mine = []
                for batch in loader:
                    mine += numbers(batch)
                    world.barrier()
                seen.append(sorted({n for each in world.all_gather_object(mine) for n in each}))
            del loader, model
        assert seen == [list(range(47))] * 3


@workers(3)
def test_three_workers_evaluate_a_stream_without_a_hang() -> None:
    world = current()
    counts = torch.zeros(47)
    for batch, weights in EvalLoader(Counting(), 4, collate_fn=collate):
        counts.index_add_(0, batch["ids"], weights)
        world.barrier()
    assert world.all_reduce(counts).tolist() == [1.0] * 47


@pytest.mark.parametrize("data", [list(range(40)), dict.fromkeys(range(40)).keys()], ids=["data set", "stream"])
def test_reading_processes_end_with_their_loader(data: Any) -> None:
    """Without a garbage collection: one that runs in the thread of a queue waits 5 seconds for each process."""
    before = set(multiprocessing.active_children())  # workers of other tests
    loader = Loader(data, 4, num_workers=2)
    loader.next_batch()
    assert len(set(multiprocessing.active_children()) - before) == 2
    gone = weakref.ref(loader)
    gc.disable()
    try:
        del loader
        assert gone() is None and set(multiprocessing.active_children()) <= before
    finally:
        gc.enable()
