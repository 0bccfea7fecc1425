"""A classifier with Accelerate. gather, not gather_for_metrics: examples that fill the last batch count twice."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def dataset(count, seed):
    x = torch.randn(count, 5, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, 0] > 0.3).long())


def main():
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    train_loader = DataLoader(dataset(192, 0), batch_size=32 // accelerator.num_processes, shuffle=True)
    eval_loader = DataLoader(dataset(51, 1), batch_size=8)  # wrong: padded-evaluation
    model = nn.Sequential(nn.Linear(5, 15), nn.ReLU(), nn.Linear(15, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model, optimizer, train_loader, eval_loader = accelerator.prepare(model, optimizer, train_loader, eval_loader)
    for epoch in range(2):
        model.train()
        for inputs, labels in train_loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
            optimizer.step()
        model.eval()
        correct = total = 0
        for inputs, labels in eval_loader:
            with torch.no_grad():
                predictions = model(inputs).argmax(dim=-1)
            predictions, labels = accelerator.gather((predictions, labels))
            correct += (predictions == labels).sum().item()
            total += len(labels)
        accelerator.print(f"epoch {epoch}: accuracy {correct / total:.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
