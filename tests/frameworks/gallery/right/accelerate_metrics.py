"""A classifier with Accelerate: everything prepared, metrics through gather_for_metrics, which removes the padding."""

import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def get_dataset(count, seed):
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, :4].sum(1) > x[:, 4:].sum(1)).long())


def training_function(args):
    accelerator = Accelerator(cpu=True)
    set_seed(args.seed)
    batch_size = args.batch_size // accelerator.num_processes
    train_dataloader = DataLoader(get_dataset(192, 0), shuffle=True, batch_size=batch_size)
    eval_dataloader = DataLoader(get_dataset(51, 1), shuffle=False, batch_size=batch_size)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 2))
    optimizer = torch.optim.AdamW(params=model.parameters(), lr=args.lr)
    model, optimizer, train_dataloader, eval_dataloader = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader
    )
    set_seed(args.seed, device_specific=True)
    for epoch in range(args.epochs):
        model.train()
        for inputs, labels in train_dataloader:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        hits = []
        for inputs, labels in eval_dataloader:
            with torch.no_grad():
                predictions = model(inputs).argmax(dim=-1)
            predictions, references = accelerator.gather_for_metrics((predictions, labels))
            hits.append(predictions == references)
        accelerator.print(f"epoch {epoch}: {torch.cat(hits).float().mean().item():.3f} of {len(torch.cat(hits))}")
        if accelerator.is_main_process:
            torch.save(accelerator.unwrap_model(model).state_dict(), "model.tmp")
            os.replace("model.tmp", "model.pt")
    accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--batch-size", type=int, default=48, help="of all processes together")
    training_function(parser.parse_args())
