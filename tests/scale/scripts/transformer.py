"""A small language model: a causal transformer with dropout, AdamW, warm-up and a cosine schedule."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(1337)
text = "in a rueda couples dance in a ring, in step, on one caller's word. " * 4
vocabulary = sorted(set(text))
data = torch.tensor([vocabulary.index(letter) for letter in text])
block = 12


class Blocks(Dataset):
    def __len__(self):
        return (len(data) - 1) // block

    def __getitem__(self, index):
        start = index * block
        return data[start : start + block], data[start + 1 : start + block + 1]


class Model(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.tokens = nn.Embedding(len(vocabulary), width)
        self.positions = nn.Embedding(block, width)
        layer = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, len(vocabulary))

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1))
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.size(1)))
        return self.head(self.encoder(x, mask=mask, is_causal=True))


model = Model()
loader = DataLoader(Blocks(), batch_size=6, shuffle=True)
steps, warmup = 3 * len(loader), 4
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1, eps=1e-4)


def rate(step):
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
for epoch in range(3):
    for inputs, targets in loader:
        logits = model(inputs)
        loss = nn.functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}, rate {scheduler.get_last_lr()[0]:.5f}")
torch.save(model.state_dict(), "model.pt")
