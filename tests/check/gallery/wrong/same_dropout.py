"""A text classifier with dropout under DDP. One seed on every rank: all ranks drop the same units in each step."""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.utils.data as data
from torch.nn.parallel import DistributedDataParallel as DDP

torch.manual_seed(123)
dist.init_process_group("gloo")

tokens = torch.randint(1, 50, (192, 12))
labels = (tokens.float().mean(dim=1) > 25).long()
train_set = data.TensorDataset(tokens, labels)


class BagOfWords(nn.Module):
    def __init__(self, vocab=50, dim=16, classes=2):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.dropout = nn.Dropout(0.5)
        self.classifier = nn.Linear(dim, classes)

    def forward(self, ids):
        return self.classifier(self.dropout(self.embedding(ids).mean(dim=1)))


sampler = data.distributed.DistributedSampler(train_set)
loader = data.DataLoader(train_set, batch_size=32 // dist.get_world_size(), sampler=sampler)
model = DDP(BagOfWords())
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

for epoch in range(2):
    sampler.set_epoch(epoch)
    model.train()
    for ids, target in loader:
        optimizer.zero_grad()
        output = model(ids)  # wrong: same-randomness
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"Epoch {epoch}: {loss.item():.4f}")

dist.destroy_process_group()
