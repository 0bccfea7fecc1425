"""``SharedLoader``: the shares of all workers are the batches of the serial loader, and weigh what they hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler

from harness import workers
from rueda.data import SharedLoader
from rueda.world import current


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(11))


def loaders() -> dict[str, DataLoader[Any]]:
    sampler = WeightedRandomSampler([1.0, 2.0, 3.0] * 4, num_samples=9)
    return {
        "shuffled": DataLoader(range(13), batch_size=5, shuffle=True),
        "without the last": DataLoader(range(13), batch_size=5, drop_last=True),
        "fewer examples than workers at last": DataLoader(range(10), batch_size=3),
        "a sampler": DataLoader(range(12), batch_size=4, sampler=sampler),
        "batches of its own": DataLoader(range(6), batch_sampler=[[0, 1, 2], [5], [3, 4]]),
        "a stream": DataLoader(Numbers(), batch_size=4),
    }


@workers(3)
def test_the_shares_are_the_batches_of_the_serial_loader() -> None:
    world = current()
    for name in loaders():
        torch.manual_seed(7)
        expected = [batch.tolist() for batch in loaders()[name]]
        torch.manual_seed(7 + 100 * world.rank)  # rank 0 alone decides the order
        loader = SharedLoader(loaders()[name])
        found = []
        for batch in loader:
            weight = SharedLoader.weight
            shares = world.all_gather_object(batch.tolist() if weight else [])
            found.append(sorted(number for share in shares for number in share))
            assert weight == pytest.approx(len(shares[world.rank]) * 3 / len(found[-1]))
            assert SharedLoader.sum(len(batch)) == len(found[-1])  # a worker without a share counts nothing
            assert SharedLoader.mean(batch.double().mean()).item() == pytest.approx(sum(found[-1]) / len(found[-1]))
        assert found == [sorted(batch) for batch in expected], name


@workers(2)
def test_the_sum_keeps_its_kind() -> None:
    SharedLoader.weight = 1.0
    assert (SharedLoader.sum(3), SharedLoader.sum(0.1)) == (6, 0.2)
    assert torch.equal(SharedLoader.sum(torch.tensor([1, 2])), torch.tensor([2, 4]))
