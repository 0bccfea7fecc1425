"""Batches of any nest: ``rueda.Loader`` takes any torch data set, and gives an update in micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, TensorDataset

from rueda.data import Arrays, DatasetLoader, Loader
from rueda.data.nest import tensors
from rueda.world.seeds import seed_worker

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")


@dataclass
class Place:
    rank: int = 0
    size: int = 1


@dataclass
class Sentence:
    ids: torch.Tensor
    length: int


class Pair(NamedTuple):
    first: torch.Tensor
    second: Any


class Words(Dataset[Any]):
    """Example i has i % 5 + 1 numbers, all of which are i."""

    def __init__(self, num: int = 24, noisy: bool = False) -> None:
        self.num, self.noisy = num, noisy

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = torch.rand(1) if self.noisy else torch.zeros(1)
        return torch.full((index % 5 + 1,), float(index)) + noise


def padded(examples: list[torch.Tensor]) -> torch.Tensor:
    return pad_sequence(examples, batch_first=True, padding_value=-1.0)


def padded_noisily(examples: list[torch.Tensor]) -> torch.Tensor:
    return padded(examples) + torch.rand(1)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "collate",
    [
        lambda examples: {"ids": padded(examples), "num": len(examples)},
        lambda examples: [padded(examples), {"lengths": torch.tensor([len(each) for each in examples])}, "text"],
        lambda examples: Pair(padded(examples), None),
        lambda examples: Sentence(padded(examples), 3),
        lambda examples: torch.nested.nested_tensor(examples, layout=torch.jagged),
        lambda examples: examples,
    ],
    ids=["dict", "list", "named tuple", "dataclass", "nested tensor", "ragged"],
)
def test_a_batch_is_what_the_collate_function_makes(collate: Any, num_workers: int) -> None:
    loader = Loader(Words(), batch=4, collate_fn=collate, num_workers=num_workers, world=Place(0, 2), device="cpu")
    expected = collate([torch.zeros(1)])
    for batch in loader:
        assert type(batch) is type(expected)
        assert len(list(tensors(batch))) >= 1
    loader.close()


def test_every_tensor_of_a_nest_is_sent_to_the_device() -> None:
    meta = Loader(Words(), batch=4, collate_fn=lambda examples: {"a": [padded(examples)], "b": 1}, device="meta")
    batch = next(iter(meta))
    assert batch["a"][0].device.type == "meta" and batch["b"] == 1


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("batch", "micro"), [(6, 2), (6, 4), (5, 9), (7, 1)])
def test_micro_batches_are_collated_by_themselves(num_workers: int, batch: int, micro: int) -> None:
    options: dict[str, Any] = {"world": Place(1, 2), "collate_fn": padded, "seed": 3}
    whole = Loader(Words(), batch, **options)
    parts = Loader(Words(), batch, num_workers=num_workers, **options)
    for _ in range(2):
        while (together := whole.next_batch()) is not None:
            [mine] = parts.next_parts(micro) or [[]]
            assert [len(each) for each in mine[:-1]] == [micro] * (len(mine) - 1)
            assert [int(row[0]) for each in mine for row in each] == together[:, 0].int().tolist()
            for each in mine:
                assert each.shape[1] == max(int(row[0]) % 5 + 1 for row in each), "padded as far as it needs to be"
            assert whole.state_dict() == parts.state_dict()
        assert parts.next_parts(micro) is None
    parts.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_rehearsal_reads_what_real_workers_read(num_workers: int) -> None:
    """Each virtual worker's micro-batches are those of the real one: examples, padding and random numbers."""

    @contextmanager
    def reading_as(rank: int) -> Iterator[None]:
        seed_worker(9, rank, 0)
        yield

    options: dict[str, Any] = {"collate_fn": padded_noisily, "seed": 1, "num_workers": num_workers}
    rehearsed = Loader(Words(noisy=True), 12, world=Place(), **options)
    rehearsed.read_for_workers(3, reading_as)
    assert isinstance(rehearsed, DatasetLoader)
    rehearsed.seed_reading(9, lambda: 0)
    found = rehearsed.next_parts(3)
    assert found is not None
    for rank, parts in enumerate(found):
        real = Loader(Words(noisy=True), 4, world=Place(rank, 3), **options)
        assert isinstance(real, DatasetLoader)
        real.seed_reading(9, lambda: 0)
        seed_worker(9, rank, 0)
        [expected] = real.next_parts(3) or [[]]
        assert [len(part) for part in parts] == [3, 1]
        assert all(torch.equal(a, b) for a, b in zip(parts, expected, strict=True))
        real.close()
    rehearsed.close()


def test_parts_of_arrays_are_slices_of_the_batch() -> None:
    data = Arrays(torch.arange(24.0).reshape(24, 1), torch.arange(24))
    whole, parts = Loader(data, 12, seed=1), Loader(data, 12, seed=1)
    parts.read_for_workers(2, lambda rank: pytest.fail("arrays draw nothing"))
    _, targets = whole.next_batch()
    found = parts.next_parts(4)
    assert found is not None
    assert [[y.tolist() for _, y in worker] for worker in found] == [
        [targets[0::2][:4].tolist(), targets[0::2][4:].tolist()],
        [targets[1::2][:4].tolist(), targets[1::2][4:].tolist()],
    ]


class Together(TensorDataset):
    """Reads a batch at once, as torch's own fetcher asks for."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(-each, each) for each in indices]

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("read together")


def test_examples_are_read_together_where_the_data_set_can() -> None:
    for inputs, targets in Loader(Together(torch.zeros(8)), batch=4):
        assert torch.equal(inputs, -targets)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_short_remainder_is_divided_evenly(size: int, num_workers: int) -> None:
    """Every example once, but for one a worker: on one worker as a DataLoader without drop_last."""
    data = TensorDataset(torch.arange(23))
    seen, lengths = [], set()
    for rank in range(size):
        loader = Loader(data, 4, world=Place(rank, size), remainder="short", num_workers=num_workers)
        for _ in range(2):
            batches = [ids.tolist() for (ids,) in loader]
            lengths.add(tuple(map(len, batches)))
            assert len(batches) == len(loader)
        seen += [each for batch in batches for each in batch]
        loader.close()
    assert len(lengths) == 1 and set(seen) == set(range(23))
    assert len(seen) <= 23 + size - 1
    tiny = Loader(data, 64, world=Place(0, size), remainder="short")
    assert [len(ids) for (ids,) in tiny] == [-(-23 // size)]
