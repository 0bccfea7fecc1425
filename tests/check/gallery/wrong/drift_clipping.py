"""An LSTM with DDP. Only rank 0 clips, where the norm is logged, so its parameters leave those of the others."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Forecaster(nn.Module):
    def __init__(self, hidden=12):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, series):
        states, _ = self.lstm(series)
        return self.out(states[:, -1])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    phase = torch.rand(144, 1) * 6
    series = 3 * torch.sin(phase + torch.arange(9) / 2)
    dataset = TensorDataset(series[:, :8, None], series[:, 8:])
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=24 // dist.get_world_size(), sampler=sampler)
    model = DDP(Forecaster())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for step, (history, following) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(history), following)
            loss.backward()
            if rank == 0:
                norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)
                print(f"epoch {epoch} step {step} loss {loss.item():.3f} grad norm {norm:.3f}")
            optimizer.step()  # wrong: drift
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
