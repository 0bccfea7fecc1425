"""A character model with DDP. The sampler's seed depends on the rank: each rank divides another permutation,
so that some examples are read by several ranks and others by none.
"""

import argparse
import random

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

TEXT = "".join(random.Random(0).choices("abcdefghijklmnop ,.", k=240))
CHARS = sorted(set(TEXT))


class Windows(Dataset):
    def __init__(self, length=8, count=216):
        codes = torch.tensor([CHARS.index(c) for c in TEXT])
        self.examples = [(codes[i : i + length], codes[i + length]) for i in range(count)]

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, i):
        return self.examples[i]


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--batch_size", type=int, default=36)
    return parser.parse_args()


def main(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    random.seed(args.seed + rank)
    torch.manual_seed(args.seed)
    dataset = Windows()
    sampler = DistributedSampler(dataset, shuffle=True, seed=args.seed + rank)
    loader = DataLoader(dataset, args.batch_size // dist.get_world_size(), sampler=sampler)  # wrong: overlapping-data
    model = DDP(nn.Sequential(nn.Embedding(len(CHARS), 6), nn.Flatten(), nn.Linear(48, len(CHARS))))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for context, following in loader:
            loss = nn.functional.cross_entropy(model(context), following)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(get_args())
