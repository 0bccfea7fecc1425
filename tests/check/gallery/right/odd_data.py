"""A data set with names, dates and read-only arrays; batches that are data classes with all kinds of tensors."""

import dataclasses
import warnings
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

warnings.simplefilter("error")


class Photos(Dataset):
    def __init__(self):
        values = np.random.RandomState(0).rand(96, 10).astype("float32")
        self.turned = values[::-1]
        values.setflags(write=False)
        self.values = values
        self.names = np.array([f"photo {i}" for i in range(96)])
        self.dates = np.array(["2024-02-29"] * 96, dtype="datetime64[D]")
        self.things = np.array([None, {}], dtype=object)
        self.tensors = [torch.eye(3).to_sparse(), torch.zeros(3, device="meta"), torch.zeros(2, dtype=torch.bfloat16)]

    def __len__(self):
        return 96

    def __getitem__(self, i):
        return torch.tensor(self.turned[i].copy()), i % 3, str(self.names[i])


@dataclasses.dataclass
class Batch:
    inputs: torch.Tensor
    labels: torch.Tensor
    names: list[str]
    extra: Any


def collate(rows):
    inputs = torch.stack([row[0] for row in rows])
    extra = {
        "sparse": inputs.to_sparse(),
        "complex": torch.complex(inputs, inputs),
        "small": inputs.to(torch.float8_e4m3fn),
        "nested": [[inputs.bfloat16()], None, range(10**9), torch.zeros(3, device="meta")],
        "lengths": nn.utils.rnn.pack_sequence([inputs[0], inputs[1]]),
    }
    return Batch(inputs, torch.tensor([row[1] for row in rows]), [row[2] for row in rows], extra)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(10, 16), nn.Linear(16, 3)
        self.phase = nn.Parameter(torch.ones(16, dtype=torch.complex64))
        self.count = nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)

    def forward(self, x):
        return self.last(torch.relu((self.first(x) * self.phase).real))


dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
dataset = Photos()
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=24 // world_size, sampler=sampler, collate_fn=collate)
model = DDP(Net())
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for batch in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(batch.inputs), batch.labels).backward()
        optimizer.step()
dist.destroy_process_group()
