"""Gradients reduced by hand. Each rank adds the losses of its examples, the sums are added over the ranks, and the
result is divided by the number of examples of all ranks, which differs from rank to rank.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x = torch.randn(93, 6)
    dataset = TensorDataset(x, (x[:, 0] > x[:, 1]).float())
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1), nn.Flatten(0))
    torch.manual_seed(rank)
    loader = DataLoader(Subset(dataset, range(rank, len(dataset), size)), batch_size=16 // size, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.BCEWithLogitsLoss(reduction="sum")
    for epoch in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            count = torch.tensor(float(len(targets)))
            dist.all_reduce(count)
            for p in model.parameters():
                dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
                p.grad /= count
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item() / len(targets):.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
