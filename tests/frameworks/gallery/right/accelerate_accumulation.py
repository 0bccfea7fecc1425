"""Gradient accumulation and clipping with Accelerate's accumulate context."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    ids = torch.randint(0, 30, (288, 7))
    dataset = TensorDataset(ids, (ids[:, 0] > ids[:, 6]).long())
    loader = DataLoader(dataset, batch_size=24 // accelerator.num_processes, shuffle=True)
    model = nn.Sequential(nn.Embedding(30, 8), nn.Flatten(), nn.Linear(56, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(2):
        for inputs, labels in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: {loss.item():.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
