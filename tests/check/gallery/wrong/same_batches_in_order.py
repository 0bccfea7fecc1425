"""Logistic regression with gradients averaged by hand. Every rank reads the whole data set in the same order."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset


def average_gradients(model):
    size = float(dist.get_world_size())
    for param in model.parameters():
        dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)
        param.grad.data /= size


def run(rank, size):
    torch.manual_seed(1234)
    x = torch.randn(128, 5)
    y = (x.sum(dim=1, keepdim=True) > 0).float()
    train_set = DataLoader(TensorDataset(x, y), batch_size=int(32 / size))  # wrong: same-batches
    model = torch.nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    for epoch in range(2):
        epoch_loss = 0.0
        for data, target in train_set:
            optimizer.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(data), target)
            epoch_loss += loss.item()
            loss.backward()
            average_gradients(model)
            optimizer.step()
        print("Rank", rank, "epoch", epoch, ":", epoch_loss / len(train_set))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    run(dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()
