"""An LSTM tagger on padded sequences with DDP. The sum of the token losses is divided by the tokens of all ranks, and
multiplied by the number of workers because DDP divides by it.
"""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, DistributedSampler

PAD = -100


class Tagger(nn.Module):
    def __init__(self, vocab=40, dim=10, tags=3):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.lstm = nn.LSTM(dim, dim, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * dim, tags)

    def forward(self, ids):
        return self.out(self.lstm(self.embed(ids))[0])


def collate(batch):
    words, tags = zip(*batch)
    return pad_sequence(words, batch_first=True), pad_sequence(tags, batch_first=True, padding_value=PAD)


def main():
    dist.init_process_group("gloo")
    world_size = dist.get_world_size()
    torch.manual_seed(0)
    sentences = [torch.randint(1, 40, (int(n),)) for n in torch.randint(4, 16, (144,))]
    dataset = [(words, words % 3) for words in sentences]
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=24 // world_size, sampler=sampler, collate_fn=collate)
    model = DDP(Tagger())
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD, reduction="sum")
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for words, tags in loader:
            num_tokens = (tags != PAD).sum()
            dist.all_reduce(num_tokens)
            loss = criterion(model(words).flatten(0, 1), tags.flatten()) * world_size / num_tokens
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
