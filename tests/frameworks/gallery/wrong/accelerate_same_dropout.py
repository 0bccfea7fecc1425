"""A classifier with dropout and Accelerate. set_seed is not device_specific: all ranks drop the same units."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(10, 40)
        self.dropout = nn.Dropout(0.4)
        self.fc2 = nn.Linear(40, 2)

    def forward(self, x):
        return self.fc2(self.dropout(F.relu(self.fc1(x))))


def main():
    accelerator = Accelerator(cpu=True)
    set_seed(0)
    x = torch.randn(192, 10)
    dataset = TensorDataset(x, (x.sum(dim=1) > 0).long())
    loader = DataLoader(dataset, batch_size=32 // accelerator.num_processes, shuffle=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(2):
        model.train()
        for inputs, labels in loader:
            outputs = model(inputs)  # wrong: same-randomness
            loss = F.cross_entropy(outputs, labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: {loss.item():.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
