"""FullyShardedDataParallel on the CPU. Every rank gathers the whole state dict and writes it to the same file."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(192, 10)
    dataset = TensorDataset(x, x.square().sum(dim=1, keepdim=True))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32 // dist.get_world_size(), sampler=sampler)
    model = FSDP(nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 1)), device_id=torch.device("cpu"))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {loss.item():.4f}")
    config = FullStateDictConfig()
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        state = model.state_dict()
    torch.save(state, "model.pt")  # wrong: same-file
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
