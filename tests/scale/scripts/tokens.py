"""A language model on sequences of different lengths: means over tokens and class weights, not over examples."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(5)
sequences = [torch.randint(1, 12, (int(length),)) for length in torch.randint(3, 11, (44,))]


def collate(batch):
    padded = pad_sequence(batch, batch_first=True)
    return padded[:, :-1], padded[:, 1:]


def masked_mean(losses, targets):
    mask = (targets != 0).float()
    return (losses * mask).sum() / mask.sum()


loader = DataLoader(sequences, batch_size=8, shuffle=True, collate_fn=collate)
weighted = nn.CrossEntropyLoss(weight=torch.linspace(0.5, 2.0, 12), ignore_index=0)
model = nn.Sequential(nn.Embedding(12, 8, padding_idx=0), nn.Linear(8, 12))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
step = 0
for _ in range(4):
    for inputs, targets in loader:
        logits = model(inputs).transpose(1, 2)
        losses = F.cross_entropy(logits, targets, reduction="none")
        if step % 4 == 0:
            loss = F.cross_entropy(logits, targets, ignore_index=0)
        elif step % 4 == 1:
            loss = weighted(logits, targets)
        elif step % 4 == 2:
            loss = masked_mean(losses, targets)
        else:
            loss = losses[targets != 0].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
    print(f"{loss.item():.4f}")
torch.save(model.state_dict(), "model.pt")
