"""A language model on padded sequences with DDP. cross_entropy's mean over each rank's tokens is averaged with equal
weights, though the ranks have different numbers of tokens.
"""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, DistributedSampler

PAD = 0


class Sentences(Dataset):
    def __init__(self, count=144):
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(3, 15, (count,), generator=generator).tolist()
        self.sentences = [torch.randint(1, 30, (n,), generator=generator) for n in lengths]

    def __len__(self):
        return len(self.sentences)

    def __getitem__(self, i):
        return self.sentences[i]


class LanguageModel(nn.Module):
    def __init__(self, vocab=30, dim=12):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])


def collate(batch):
    return pad_sequence(batch, batch_first=True, padding_value=PAD)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = Sentences()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, 24 // dist.get_world_size(), sampler=sampler, collate_fn=collate)
    model = DDP(LanguageModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for ids in loader:
            logits = model(ids[:, :-1])
            loss = criterion(logits.flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()  # wrong: uneven-mean
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
