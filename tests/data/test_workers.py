from __future__ import annotations

import torch

from harness import workers
from rueda.data import Arrays, DatasetLoader, EvalLoader, Loader, RandomCrop
from rueda.world import current


@workers(2)
def test_two_workers_share_an_epoch_in_step() -> None:
    world = current()
    data = Arrays(torch.zeros(21, 1, 4, 4, dtype=torch.uint8), torch.arange(21))
    loader = Loader(data, 3, augment=[RandomCrop(1)])
    assert (loader.rank, loader.size) == (world.rank, 2)
    for _ in range(2):
        mine = torch.cat([targets for _, targets in loader])
        everybody = torch.cat(world.all_gather(mine)).tolist()
        assert len(set(everybody)) == 18
    states = world.all_gather_object(loader.state_dict())
    assert states[0] == states[1]


@workers(2)
def test_two_workers_share_a_torch_dataset() -> None:
    world, dataset = current(), torch.utils.data.TensorDataset(torch.randn(10, 2), torch.arange(10))
    mine = torch.cat([targets for _, targets in DatasetLoader(dataset, batch=2)])
    assert len(set(torch.cat(world.all_gather(mine)).tolist())) == 8


@workers(3)
def test_three_workers_count_every_test_example_once() -> None:
    world = current()
    data = Arrays(torch.zeros(20, 1), torch.arange(20))
    counts = torch.zeros(20)
    for _, targets, weights in EvalLoader(data, 4):
        counts.index_add_(0, targets, weights)
        world.barrier()  # hangs unless all have the same number of batches
    assert world.all_reduce(counts).tolist() == [1.0] * 20
