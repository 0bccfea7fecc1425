"""Two loader processes that are kept, an augmentation in them, and a collate_fn of one's own."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __len__(self):
        return 46

    def __getitem__(self, index):
        x = torch.cos(torch.arange(5.0) * index)
        return x + 0.1 * torch.randn(5), index % 2


def collate(examples):
    return {"inputs": torch.stack([x for x, _ in examples]), "labels": torch.tensor([y for _, y in examples])}


if __name__ == "__main__":
    torch.manual_seed(0)
    loader = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2, persistent_workers=True, collate_fn=collate)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        for batch in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch["inputs"]), batch["labels"]).backward()
            optimizer.step()
    torch.save(model.state_dict(), "model.pt")
