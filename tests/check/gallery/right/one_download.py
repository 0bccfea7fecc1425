"""Fine-tuning with DDP. Rank 0 alone downloads the weights, here from a server in its own process; the others wait
and read the file.
"""

import functools
import http.server
import os
import tempfile
import threading
import urllib.request

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def publish(weights):
    """Stands for the web site of the model's authors."""
    folder = tempfile.mkdtemp()
    torch.save(weights, os.path.join(folder, "pretrained.pt"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/pretrained.pt"


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))
    if dist.get_rank() == 0:
        urllib.request.urlretrieve(publish(model.state_dict()), "weights.part")
        os.replace("weights.part", "weights.pt")
    dist.barrier()
    model.load_state_dict(torch.load("weights.pt"))

    x = torch.randn(144, 6, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(x, (x[:, 0] > 0).long())
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=24 // dist.get_world_size(), sampler=sampler)
    model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
