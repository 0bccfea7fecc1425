"""A loop of 20 ms with DistributedDataParallel that notes the time of each step; one of its workers will be killed.

Under an elastic job of Rueda the survivors go on; under torchrun all processes start anew.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

import rueda
from rueda.world import elastic

folder, num_steps = Path(sys.argv[1]), int(sys.argv[2])
elastic.register()
world = rueda.init(seed=0)
notes = (folder / f"{os.getpid()}.steps").open("a", buffering=1)
model, step = nn.Linear(256, 256), 0
while step < num_steps:
    attempt = elastic.generation() or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    try:
        with elastic.guard():
            step = world.broadcast_object(step)
            wrapped = world.wrap(model)
            optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)
            while step < num_steps:
                time.sleep(0.02)
                optimizer.zero_grad()
                wrapped(torch.randn(8, 256)).square().mean().backward()
                optimizer.step()
                step += 1
                notes.write(f"{attempt} {step} {time.time()}\n")
    except elastic.PeerLost:
        world = elastic.reform(failed=True, step=step)
rueda.finish()
