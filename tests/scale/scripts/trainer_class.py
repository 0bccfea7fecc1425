"""A class that trains, keeps the best model in a file, stops early and loads the best at the end."""

from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, model, train_set, valid_set, folder="checkpoints", patience=2):
        self.model = model
        self.train_loader = self.loader(train_set, shuffle=True)
        self.valid_loader = self.loader(valid_set, shuffle=False)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=0.05, eps=1e-4)
        self.folder = Path(folder)
        self.folder.mkdir(exist_ok=True, parents=True)
        self.best, self.bad, self.patience = float("inf"), 0, patience

    def loader(self, data, shuffle):
        return DataLoader(data, batch_size=11, shuffle=shuffle)

    def train_step(self, batch):
        inputs, targets = batch
        self.optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(self.model(inputs).squeeze(1), targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def evaluate(self):
        self.model.eval()
        total = count = 0
        for inputs, targets in self.valid_loader:
            logits = self.model(inputs).squeeze(1)
            total += nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum").item()
            count += len(targets)
        self.model.train()
        return total / count

    def fit(self, epochs):
        for epoch in range(epochs):
            losses = [self.train_step(batch) for batch in self.train_loader]
            loss = self.evaluate()
            print(f"epoch {epoch}: {sum(losses) / len(losses):.4f} {loss:.4f}")
            if loss < self.best:
                self.best, self.bad = loss, 0
                torch.save({"model": self.model.state_dict(), "epoch": epoch}, self.folder / "best.pt")
            else:
                self.bad += 1
                if self.bad >= self.patience:
                    break
        checkpoint = torch.load(self.folder / "best.pt")
        self.model.load_state_dict(checkpoint["model"])


torch.manual_seed(21)
x = torch.randn(80, 6)
y = (x[:, 0] * x[:, 1] > 0).float()
trainer = Trainer(
    nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 1)),
    TensorDataset(x[:60], y[:60]),
    TensorDataset(x[60:], y[60:]),
)
trainer.fit(epochs=8)
torch.save(trainer.model.state_dict(), "model.pt")
