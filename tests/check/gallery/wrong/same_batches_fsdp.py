"""An MLP with fully_shard. A generator with one fixed seed shuffles the whole data set alike on every rank."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, RandomSampler, TensorDataset


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def build_model(mesh):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 16), Block(16), Block(16), nn.Linear(16, 3))
    for layer in model:
        if isinstance(layer, Block):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = build_model(mesh)

    x = torch.randn(144, 10, generator=torch.Generator().manual_seed(5))
    y = x[:, :3].argmax(dim=1)
    data = TensorDataset(x, y)
    sampler = RandomSampler(data, generator=torch.Generator().manual_seed(7))
    loader = DataLoader(data, batch_size=36 // dist.get_world_size(), sampler=sampler)  # wrong: same-batches

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(2):
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
