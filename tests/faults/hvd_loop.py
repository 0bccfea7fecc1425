"""A plain script for Horovod with checkpoints (``rueda.Checkpoint``), which is started again after a failure."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import torch
from torch.nn import functional as F

import rueda
import rueda.hvd.torch as hvd
from faults import points
from faults.injected import VARIABLE, Worker
from faults.plan import JOBS
from rueda.errors import RuedaError


def main() -> None:
    warnings.simplefilter("default")
    worker = Worker(Path(os.environ[VARIABLE]))
    worker.note("began")
    try:
        train(worker)
    except (RuedaError, hvd.HorovodInternalError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(2)


def train(worker: Worker) -> None:
    hvd.init()
    torch.set_num_threads(1)
    model, (inputs, targets) = points.network(), points.data()
    optimizer = torch.optim.SGD(model.parameters(), lr=points.RATE, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    checkpoint = rueda.Checkpoint(worker.run_folder / "checkpoints", model=model, optimizer=optimizer)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for step in range(checkpoint.resume(), JOBS["hvd-2"].steps):
        mine = points.batch_of(step)[hvd.rank() :: hvd.size()]
        optimizer.zero_grad()
        F.cross_entropy(model(inputs[mine]), targets[mine]).backward()
        optimizer.step()
        worker.at_step(hvd.rank(), step + 1, {"model": model})
        if (step + 1) % 5 == 0:
            checkpoint.save(step + 1)
    hvd.shutdown()
