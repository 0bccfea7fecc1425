"""An iterable data set, divided among two processes of the loader."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, self.count, step):
            x = torch.sin(torch.arange(4.0) * (number + 1))
            yield {"x": x, "y": x.sum().view(1)}


if __name__ == "__main__":
    torch.manual_seed(0)
    loader = DataLoader(Stream(58), batch_size=7, num_workers=2)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for batch in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(batch["x"]), batch["y"]).backward()
            optimizer.step()
    torch.save(model.state_dict(), "model.pt")
