"""A regression with Accelerate. The loop calls the unwrapped model, so that no gradient is averaged."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 18), nn.ReLU(), nn.Linear(18, 1))

    def loss(self, x, y):
        return nn.functional.mse_loss(self.net(x), y)

    def forward(self, x):
        return self.net(x)


def main():
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    x = torch.randn(160, 6)
    dataset = TensorDataset(x, x.square().mean(dim=1, keepdim=True))
    loader = DataLoader(dataset, batch_size=32 // accelerator.num_processes, shuffle=True)
    model = Regressor()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(2):
        for inputs, targets in loader:
            loss = accelerator.unwrap_model(model).loss(inputs, targets)
            accelerator.backward(loss)
            optimizer.step()  # wrong: gradients-not-averaged
            optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: {loss.item():.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
