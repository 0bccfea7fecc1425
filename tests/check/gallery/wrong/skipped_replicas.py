"""A Trainer class with DDP. The number of replicas is still that of an older machine with 4 GPUs,
so that on 2 workers half of every epoch is read by no rank.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

NUM_GPUS = 4


class Trainer:
    def __init__(self, model, dataset, batch_size, lr):
        self.rank = dist.get_rank()
        self.sampler = DistributedSampler(dataset, num_replicas=NUM_GPUS, rank=self.rank, shuffle=True)
        self.loader = DataLoader(dataset, batch_size=batch_size, sampler=self.sampler)  # wrong: skipped-data
        self.model = DDP(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(source), targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def train(self, max_epochs):
        for epoch in range(max_epochs):
            self.sampler.set_epoch(epoch)
            losses = [self._run_batch(source, targets) for source, targets in self.loader]
            if self.rank == 0:
                print(f"Epoch {epoch} | Steps: {len(losses)} | Loss: {sum(losses) / len(losses):.4f}")


if __name__ == "__main__":
    dist.init_process_group(backend="gloo")
    torch.manual_seed(0)
    x = torch.randn(320, 12)
    dataset = TensorDataset(x, x[:, :5].argmax(dim=1))
    model = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 5))
    Trainer(model, dataset, batch_size=32 // dist.get_world_size(), lr=0.05).train(2)
    dist.destroy_process_group()
