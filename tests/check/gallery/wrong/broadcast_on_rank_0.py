"""Early stopping with gradients averaged by hand. Only rank 0 calls broadcast for the decision; the others do not
take part in it and wait in the gather of the losses.
"""

import datetime

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


def average_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def should_stop(losses):
    stop = torch.tensor(len(losses) > 1 and losses[-1] > losses[-2])
    dist.broadcast(stop, src=0)  # wrong: different-collectives
    return bool(stop)


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x = torch.randn(120, 4)
    dataset = TensorDataset(x, x.sum(dim=1, keepdim=True))
    loader = DataLoader(Subset(dataset, range(rank, len(dataset), size)), batch_size=24 // size, shuffle=True)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    history = []
    for epoch in range(3):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            average_gradients(model)
            optimizer.step()
        history.append(loss.item())
        if rank == 0 and should_stop(history):
            break
        everyone = [None] * size
        dist.all_gather_object(everyone, history[-1])  # wrong: different-collectives
        print(f"rank {rank}, epoch {epoch}: {everyone}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
