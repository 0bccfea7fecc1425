"""A script for ``horovodrun --min-np``, as people write them; it counts how often each example was trained on."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from faults import points
from faults.injected import VARIABLE, Worker, generation
from faults.plan import PAUSE_SECONDS

BATCH = 6


def main() -> None:
    import horovod.torch as hvd  # which the launcher offers to its workers

    worker = Worker(Path(os.environ[VARIABLE]))
    hvd.init()
    torch.set_num_threads(1)
    inputs, targets = points.data()
    dataset = torch.utils.data.TensorDataset(torch.arange(points.NUM))
    sampler = hvd.elastic.ElasticSampler(dataset, seed=7)
    loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH, sampler=sampler)
    model = points.network()
    optimizer = torch.optim.SGD(model.parameters(), lr=points.RATE)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    @hvd.elastic.run
    def train(state: Any) -> None:
        worker.enter(hvd.rank(), hvd.size(), state.step)
        while True:
            for number, (indices,) in enumerate(loader):
                optimizer.zero_grad()
                F.cross_entropy(model(inputs[indices]), targets[indices]).backward()
                optimizer.step()
                seen = torch.zeros(points.NUM)
                seen.index_add_(0, indices, torch.ones(len(indices)))
                state.counts += hvd.allreduce(seen, op=hvd.Sum, name="seen")
                start, stop = (place * BATCH * hvd.size() for place in (number, number + 1))
                state.twice += max(0, min(stop, sampler.total_size) - max(start, len(sampler.remaining_indices)))
                sampler.record_batch(number, BATCH)
                state.step += 1
                if hvd.rank() == 0:
                    worker.note("step", step=state.step, size=hvd.size(), generation=generation())
                worker.obey(hvd.rank(), {"model": model})
                time.sleep(PAUSE_SECONDS)
                if state.step % 5 == 0:
                    state.commit()
            state.epoch += 1
            sampler.set_epoch(state.epoch)
            state.commit()
            if hvd.broadcast_object((worker.control / "enough").exists(), name="enough"):
                return

    counts = torch.zeros(points.NUM)
    state: Any = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, step=0, twice=0, counts=counts)
    train(state)
    worker.note("ended", rank=hvd.rank(), size=hvd.size(), step=state.step)
    if hvd.rank() == 0:
        few = int((state.epoch - state.counts).clamp(min=0).sum())
        many = int((state.counts - state.epoch).clamp(min=0).sum()) - state.twice
        result = {"step": state.step, "lost": few, "twice": many, "accuracy": points.accuracy(model)}
        torch.save({**result, "epochs": state.epoch, "model": points.vector(model)}, worker.control / "result.pt")
    hvd.shutdown()


if __name__ == "__main__":
    main()
