"""Options, a log file, a folder for the results, a rate that falls where the validation loss does."""

import argparse
import logging
import os

import torch
from torch import nn, optim
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, Subset, TensorDataset


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="runs/first")
    return parser.parse_args()


def train(model, loader, optimizer):
    model.train()
    total = 0.0
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.smooth_l1_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    return sum(nn.functional.smooth_l1_loss(model(x), y, reduction="sum").item() for x, y in loader)


def main():
    args = parse()
    os.makedirs(args.out)
    logging.basicConfig(filename=os.path.join(args.out, "train.log"), level=logging.INFO, force=True)
    torch.manual_seed(args.seed)
    x = torch.randn(60, 5)
    data = TensorDataset(x, x.sin().sum(1, keepdim=True))
    train_loader = DataLoader(Subset(data, range(40)), args.batch_size, shuffle=True)
    valid_loader = DataLoader(Subset(data, range(40, 60)), args.batch_size)
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.5)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    for epoch in range(args.epochs):
        mean = train(model, train_loader, optimizer)
        loss = validate(model, valid_loader)
        scheduler.step(loss)
        logging.info("epoch %d: training loss %.6f, validation loss %.6f", epoch, mean, loss)
    torch.save(model.state_dict(), "model.pt")
    with open(os.path.join(args.out, "train.log")) as log:
        print("log:", log.read().count("epoch"), "lines")
    logging.shutdown()


if __name__ == "__main__":
    main()
