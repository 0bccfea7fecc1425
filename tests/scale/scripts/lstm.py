"""An LSTM that classifies sequences, with gradients clipped by their norm."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Tagger(nn.Module):
    def __init__(self, words=20, width=12):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.dropout = nn.Dropout(0.3)
        self.out = nn.Linear(width, 3)

    def forward(self, tokens):
        h0 = torch.zeros(1, tokens.size(0), 12)
        output, _ = self.lstm(self.embedding(tokens), (h0, torch.zeros_like(h0)))
        return self.out(self.dropout(output[:, -1]))


torch.manual_seed(3)
tokens = torch.randint(0, 20, (60, 9))
labels = tokens[:, 0] % 3
train, valid = random_split(TensorDataset(tokens, labels), [45, 15])
loader = DataLoader(train, batch_size=10, shuffle=True)
valid_loader = DataLoader(valid, batch_size=15)
model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(2):
    model.train()
    for batch, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch), target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for batch, target in valid_loader:
            print(epoch, nn.functional.cross_entropy(model(batch), target).item())
torch.save(model.state_dict(), "model.pt")
