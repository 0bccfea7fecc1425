from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from rueda.data import Arrays, DatasetLoader, Loader, PartitionSampler
from rueda.errors import DataError

# On a machine of one core torch advises against two processes, which is not what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")

INPUTS, TARGETS = torch.arange(30.0).reshape(30, 1), torch.arange(30)


@dataclass
class Place:
    rank: int = 0
    size: int = 1


def drawn(loader: Any) -> list[list[int]]:
    return [targets.tolist() for _, targets in loader]


@pytest.mark.parametrize("partition", ["shards", "random"])
@pytest.mark.parametrize("remainder", ["drop", "pad"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_any_dataset_is_partitioned_like_arrays(partition: str, remainder: str, num_workers: int) -> None:
    options: dict[str, Any] = {"seed": 4, "partition": partition, "remainder": remainder, "world": Place(1, 2)}
    arrays = Loader(Arrays(INPUTS, TARGETS), 4, **options)
    dataset = DatasetLoader(TensorDataset(INPUTS, TARGETS), 4, num_workers=num_workers, **options)
    sampler = PartitionSampler(30, 4, **options)
    through_torch = DataLoader(TensorDataset(INPUTS, TARGETS), batch_sampler=sampler)
    assert len(arrays) == len(dataset) == len(sampler) == len(through_torch)
    for epoch in range(2):
        assert arrays.epoch == dataset.epoch == sampler.epoch == epoch
        expected = drawn(arrays)
        assert drawn(dataset) == expected
        assert drawn(through_torch) == expected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_only_what_was_handed_out_counts(num_workers: int) -> None:
    dataset = TensorDataset(INPUTS, TARGETS)
    expected = drawn(DatasetLoader(dataset, 3, world=Place()))
    first = DatasetLoader(dataset, 3, world=Place(), num_workers=num_workers)
    got = []
    for _, targets in first:
        got.append(targets.tolist())
        if len(got) == 4:
            break
    second = DatasetLoader(dataset, 3, world=Place(), num_workers=num_workers)
    second.load_state_dict(first.state_dict())
    assert second.position == 12
    assert got + drawn(second) == expected
    assert (second.epoch, second.position) == (1, 0)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_batch_can_grow_within_an_epoch(num_workers: int) -> None:
    loader = DatasetLoader(TensorDataset(INPUTS, TARGETS), 3, world=Place(), num_workers=num_workers)
    [order] = drawn(DatasetLoader(TensorDataset(INPUTS, TARGETS), 30, world=Place()))
    lengths, seen = [], []
    for _, targets in loader:
        lengths.append(len(targets))
        seen += targets.tolist()
        loader.batch = 6 if len(lengths) >= 2 else 3
    assert lengths == [3, 3, 6, 6, 6, 6]
    assert seen == order


def test_the_sampler_goes_on_from_its_state() -> None:
    first, second = PartitionSampler(30, 5, world=Place()), PartitionSampler(30, 5, world=Place())
    whole = list(PartitionSampler(30, 5, world=Place()))
    batches = iter(first)
    assert [next(batches), next(batches)] == whole[:2]
    second.load_state_dict(first.state_dict())
    assert list(second) == whole[2:]
    second.set_epoch(0)
    assert list(second) == whole


class Endless(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


class Single(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DatasetLoader(Endless(), 1, world=Place()), "one with a length"),
        (lambda: DatasetLoader(Single(), 2, world=Place(), augment=[]), "arguments for this kind of data"),
        (lambda: DatasetLoader(Single(), 2, world=Place()).next_parts(0), "1 or more"),
        (lambda: DatasetLoader(Single(), 5, world=Place()), "at most the 4"),
        (lambda: PartitionSampler(4, 5, world=Place()), "at most the 4"),
    ],
)
def test_mistakes_are_refused(make: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()
