"""A training whose workers come and go: horovodrun -np 2 --min-np 1 --max-np 4 python elastic.py"""

import argparse
import os

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description="Elastic Horovod on generated points")
parser.add_argument("--batch-size", type=int, default=32, help="examples a worker and step")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--examples", type=int, default=4096)
parser.add_argument("--lr", type=float, default=0.01, help="for one worker")
parser.add_argument("--batches-per-commit", type=int, default=10, help="what a failure may cost")
parser.add_argument("--batches-per-host-check", type=int, default=1)
parser.add_argument("--until", help="train until this file is there, however many epochs that takes")


def points(count, seed):
    """Draw points in 16 dimensions; the class is that of the nearest of ten centres."""
    centres = torch.randn(10, 16, generator=torch.Generator().manual_seed(1))
    data = 2 * torch.randn(count, 16, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(data, torch.cdist(data, centres).argmin(1))


def main(args):
    """Train, and test at the end."""
    hvd.init()
    torch.manual_seed(42)
    torch.set_num_threads(1)
    dataset = points(args.examples, seed=2)
    sampler = hvd.elastic.ElasticSampler(dataset)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)

    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def goes_on(state):
        if args.until:
            return not hvd.broadcast_object(os.path.exists(args.until), root_rank=0)
        return state.epoch < args.epochs

    @hvd.elastic.run
    def train(state):
        print(f"{hvd.size()} workers, process {os.getpid()}, rate {optimizer.param_groups[0]['lr']:g}", flush=True)
        while goes_on(state):
            first = state.batch  # the loader counts from 0 again, and begins with what is left of this epoch
            for index, (data, target) in enumerate(loader):
                state.batch = first + index
                if state.batch % args.batches_per_commit == 0:
                    state.commit()
                elif state.batch % args.batches_per_host_check == 0:
                    state.check_host_updates()
                optimizer.zero_grad()
                loss = F.cross_entropy(model(data), target)
                loss.backward()
                optimizer.step()
                sampler.record_batch(index, args.batch_size)
            state.epoch, state.batch = state.epoch + 1, 0
            sampler.set_epoch(state.epoch)
            state.commit()

    def on_state_reset():
        for group in optimizer.param_groups:
            group["lr"] = args.lr * hvd.size()

    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0)
    state.register_reset_callbacks([on_state_reset])
    train(state)

    data, target = points(1000, seed=3).tensors
    accuracy = (model(data).argmax(1) == target).float().mean().item()
    same = [other == accuracy for other in hvd.allgather_object(accuracy)]
    if hvd.rank() == 0:
        print(f"Epochs: {state.epoch}, accuracy: {100 * accuracy:.2f}%, the same on {sum(same)} workers", flush=True)


if __name__ == "__main__":
    main(parser.parse_args())
