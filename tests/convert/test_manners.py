"""More manners of writing a training loop, as short scripts: converted, on two workers, they end as the serial ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from converthere import difference, run_here, run_on_these_workers
from harness import workers
from rueda.check.convert import convert
from scalehere import flat

HEAD = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(20, 3), torch.randn(20, 1))
"""
MANNERS = {
    "a function that makes the loaders": """
def get_loaders(n):
    a = DataLoader(data, batch_size=n, shuffle=True)
    return a, DataLoader(data, batch_size=n)
def main():
    train_loader, val_loader = get_loaders(4)
    model = nn.Linear(3, 1)
    opt = torch.optim.SGD(model.parameters(), lr=.1)
    for e in range(2):
        for x, y in train_loader:
            opt.zero_grad(); loss = (model(x) - y).pow(2).mean(); loss.backward(); opt.step()
    torch.save(model.state_dict(), "model.pt")
main()
""",
    "loaders in a dictionary": """
loaders = {"train": DataLoader(data, batch_size=4, shuffle=True), "val": DataLoader(data, batch_size=4)}
model = nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=.1)
for e in range(2):
    for x, y in loaders["train"]:
        opt.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
torch.save(model.state_dict(), "model.pt")
""",
    "a model for each fold": """
for fold in range(2):
    loader = DataLoader(data, batch_size=4, shuffle=True)
    model = nn.Linear(3, 1)
    opt = torch.optim.SGD(model.parameters(), lr=.1)
    for e in range(2):
        for x, y in loader:
            opt.zero_grad()
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            opt.step()
torch.save(model.state_dict(), "model.pt")
""",
    "batches taken by next": """
loader = DataLoader(data, batch_size=4, shuffle=True)
model = nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=.1)
it = iter(loader)
for step in range(9):
    try:
        x, y = next(it)
    except StopIteration:
        it = iter(loader)
        x, y = next(it)
    opt.zero_grad()
    loss = (model(x) - y).pow(2).mean()
    loss.backward()
    opt.step()
    if step % 3 == 0: print(step, loss.item())
torch.save(model.state_dict(), "model.pt")
""",
    "a meter": """
class AverageMeter:
    def __init__(self): self.sum = self.count = 0
    def update(self, v, n=1):
        self.sum += v * n
        self.count += n
loader = DataLoader(data, batch_size=3, shuffle=True)
model = nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=.1)
for e in range(2):
    losses = AverageMeter()
    for x, y in loader:
        opt.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
        losses.update(loss.item(), x.size(0))
    print(losses.sum / losses.count)
torch.save(model.state_dict(), "model.pt")
""",
    "a function that makes the optimizer": """
def fit(model, loader, epochs=2):
    opt = torch.optim.SGD(model.parameters(), lr=.1)
    for e in range(epochs):
        for x, y in loader:
            opt.zero_grad()
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            opt.step()
    return model
model = fit(nn.Linear(3, 1), DataLoader(data, batch_size=3, shuffle=True))
torch.save(model.state_dict(), "model.pt")
""",
    "a training that is printed": """
import os
def fit(model, loader):
    total = 0
    for x, y in loader:
        opt.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
        total += loss.item() / len(loader)
    return total
def evaluate(net): return net(data[:][0]).mean().item()
loader = DataLoader(data, batch_size=3, shuffle=True)
model = nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=.1)
for e in range(2):
    if e == 1: print("epoch", e, fit(model, loader), f"{evaluate(model)}")
    torch.save(model.state_dict(), "model.pt")
if os.path.exists("model.pt"):
    model.load_state_dict(torch.load("model.pt"))
""",
    "a closure of LBFGS": """
loader = DataLoader(data, batch_size=3, shuffle=True)
model = nn.Linear(3, 1)
opt = torch.optim.LBFGS(model.parameters(), lr=.1, max_iter=2)
for e in range(2):
    for x, y in loader:
        def closure():
            opt.zero_grad()
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            return loss
        opt.step(closure)
torch.save(model.state_dict(), "model.pt")
""",
}


@workers(2)
def on_2(file: str, folder: str) -> None:
    run_on_these_workers(file, folder)


@pytest.mark.parametrize("to", ["ddp", "rueda", "horovod"])
@pytest.mark.parametrize("manner", MANNERS)
def test_each_manner_ends_as_the_serial_script(manner: str, to: str, tmp_path: Path) -> None:
    before = (HEAD + MANNERS[manner]).encode()
    conversion = convert(before, to=to)
    if conversion.warnings:
        assert (manner, to) == ("a closure of LBFGS", "horovod")
        return
    (tmp_path / "train.py").write_bytes(conversion.after)
    on_2(file=str(tmp_path / "train.py"), folder=str(tmp_path))
    found = flat(torch.load(tmp_path / "model.pt"))
    assert difference(found, run_here(before, tmp_path / "serial")) < 1e-6
