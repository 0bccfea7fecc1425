"""FullyShardedDataParallel on the CPU. All ranks gather the whole state dict; rank 0 alone writes it, atomically."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def save_model(model, path):
    config = FullStateDictConfig()
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        state = model.state_dict()
    if dist.get_rank() == 0:
        torch.save(state, path + ".tmp")
        os.replace(path + ".tmp", path)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(192, 10)
    dataset = TensorDataset(x, x[:, :4].argmax(dim=1))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=24 // dist.get_world_size(), sampler=sampler)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))
    model = FSDP(model, device_id=torch.device("cpu"))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        totals = torch.zeros(2)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels, reduction="mean")
            loss.backward()
            optimizer.step()
            totals += torch.tensor([loss.item() * len(inputs), len(inputs)])
        dist.all_reduce(totals)
        save_model(model, "fsdp.pt")
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {totals[0] / totals[1]:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
