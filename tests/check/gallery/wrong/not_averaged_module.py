"""A classifier wrapped in DDP. The loop calls model.module, which goes past DDP: no gradient is averaged."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(10, 20)
        self.head = nn.Linear(20, 4)

    def forward(self, x):
        return self.head(F.relu(self.body(x)))

    def compute_loss(self, x, y):
        return F.cross_entropy(self(x), y)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(240, 10)
    dataset = TensorDataset(x, x[:, 2:6].argmax(dim=1))
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=48 // dist.get_world_size(), sampler=sampler)
    model = DDP(Classifier())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = model.module.compute_loss(inputs, labels)
            loss.backward()
            optimizer.step()  # wrong: gradients-not-averaged
        if dist.get_rank() == 0:
            print(f"epoch {epoch}, loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
