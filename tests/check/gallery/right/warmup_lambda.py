"""DDP with the recipe of large batches: each worker keeps its batch, the rate is multiplied by the number of workers
and reached by a linear warm-up (LambdaLR); then it decays by steps.
"""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BASE_LR, BATCH_PER_WORKER, EPOCHS, WARMUP_EPOCHS = 0.02, 16, 3, 1


def factor(step, steps_per_epoch, world_size):
    warmup = WARMUP_EPOCHS * steps_per_epoch
    if step < warmup:
        return (1 + (world_size - 1) * step / warmup) / world_size
    return 0.1 if step >= 2 * steps_per_epoch else 1.0


def main():
    dist.init_process_group("gloo")
    world_size = dist.get_world_size()
    torch.manual_seed(0)
    x = torch.randn(288, 3, 5, 5)
    dataset = TensorDataset(x, x.amax(dim=(2, 3)).argmax(dim=1))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=BATCH_PER_WORKER, sampler=sampler, drop_last=True)
    model = DDP(nn.Sequential(nn.Flatten(), nn.Linear(75, 20), nn.ReLU(), nn.Linear(20, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=BASE_LR * world_size, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: factor(t, len(loader), world_size))
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {mean.item() / world_size:.4f}, lr {scheduler.get_last_lr()[0]:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
