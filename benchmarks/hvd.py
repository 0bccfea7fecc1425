"""The Horovod-shaped front against plain torch.distributed, on 2 workers, in turns within one run.

========================================  ===================================================  ================
what                                      against                                              target
========================================  ===================================================  ================
a step of DistributedOptimizer, a CNN     DistributedDataParallel over Gloo, the same model    at least 1.15
the same, an MLP of 4.2 million           the same, batch 64                                   at least 1.15
the same, an MLP of 3.7 million           the same, batch 32                                   at least 1.15
the same, 40 layers of 64 x 64            the same, batch 32                                   at least 1.15
100 async all-reduces of 1,000 floats     the same, unfused, through torch.distributed         at least 4 times
one all-reduce of one float               torch.distributed.all_reduce                         at most 2 times
one all-reduce of 16 MB                   torch.distributed.all_reduce                         at most 1.05
========================================  ===================================================  ================

Horovod 0.28.1 itself cannot be installed beside today's torch; it was built once, with a newer C++ standard, and timed
on two processes of one thread each. Its medians (``HOROVOD_SECONDS``) are printed beside ours, and only tell something
on a machine like that one. Of its MLP only the number of parameters is known, so the layers here are ours.

A round is one measurement of each; figures are medians over rounds of the ratio within a round. The processor's time
of rank 0, with all its threads, is given beside: it says more where other programs run.

Run it with::

    python benchmarks/hvd.py
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import rueda.hvd.torch as hvd
from _common import save
from plan import MLP_BATCH, mlp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--only", choices=[*PARTS], action="append")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        work(arguments.rounds, arguments.only or [*PARTS])
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    workers = [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env={**os.environ, "OMP_NUM_THREADS": "1", **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    sys.exit(max(worker.wait() for worker in workers))


def work(rounds: int, parts: list[str]) -> None:
    hvd.init()
    results: dict[str, Any] = {}
    for part in parts:
        target, ours, theirs, per_round = PARTS[part]()
        seconds, processor = in_turns(ours, theirs, rounds, per_round)
        ratio = statistics.median(b / a for a, b in zip(*seconds, strict=True))
        results[part] = {
            "target": target,
            "speed against torch.distributed": ratio,
            "seconds": statistics.median(seconds[0]),
            "torch.distributed seconds": statistics.median(seconds[1]),
            "speed of the fastest rounds": min(seconds[1]) / min(seconds[0]),
            "fastest seconds": min(seconds[0]),
            "torch.distributed fastest seconds": min(seconds[1]),
            "processor seconds": statistics.median(processor[0]),
            "torch.distributed processor seconds": statistics.median(processor[1]),
        }
        if part in HOROVOD_SECONDS:
            results[part]["Horovod 0.28.1 seconds"] = HOROVOD_SECONDS[part]
        if hvd.rank() == 0:
            show(part, results[part])
    if hvd.rank() == 0 and len(parts) == len(PARTS):
        save("hvd", {"workers": 2, "rounds": rounds, "results": results}, seeds=(0,))
    hvd.shutdown()


def show(part: str, row: dict[str, Any]) -> None:
    microseconds = [row[key] * 1e6 for key in ("seconds", "torch.distributed seconds")]
    print(
        f"{part:<40}{microseconds[0]:>12.1f} µs{microseconds[1]:>12.1f} µs"
        f"   speed {row['speed against torch.distributed']:.3f}, fastest {row['speed of the fastest rounds']:.3f}"
        f"   ({row['target']}), processor {row['processor seconds'] * 1e6:.1f} µs"
        + (f", Horovod {HOROVOD_SECONDS[part] * 1e6:.0f} µs" if part in HOROVOD_SECONDS else ""),
        flush=True,
    )


def in_turns(
    ours: Callable[[], object], theirs: Callable[[], object], rounds: int, per_round: int
) -> tuple[tuple[list[float], list[float]], tuple[list[float], list[float]]]:
    """Time both in short turns, by the clock and by the processor's time; who begins changes from round to round."""
    seconds: tuple[list[float], list[float]] = ([], [])
    processor: tuple[list[float], list[float]] = ([], [])
    for _ in range(3):
        ours()
        theirs()
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            run = (ours, theirs)[which]
            dist.barrier()
            begun, used = time.perf_counter(), time.process_time()
            for _ in range(per_round):
                run()
            seconds[which].append((time.perf_counter() - begun) / per_round)
            processor[which].append((time.process_time() - used) / per_round)
    return seconds, processor


def training(
    make: Callable[[], nn.Module], inputs: torch.Tensor
) -> tuple[str, Callable[[], object], Callable[[], object], int]:
    """A step of a network, by DistributedOptimizer and by DistributedDataParallel over Gloo; 10 classes."""
    labels = torch.randint(10, (len(inputs),))

    def model() -> nn.Module:
        torch.manual_seed(0)
        return make()

    def steps(forward: nn.Module, optimizer: Any) -> Callable[[], None]:
        def step() -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(forward(inputs), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        return step

    ours = model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(ours.parameters(), lr=0.01, momentum=0.9), ours.named_parameters()
    )
    hvd.broadcast_parameters(ours.state_dict(), root_rank=0)
    theirs = model()
    # Its buffers stay with each worker, as they do under Horovod.
    options: dict[str, Any] = {_buffers(): False}
    wrapped = nn.parallel.DistributedDataParallel(theirs, **options)
    return (
        "at least 1.15",
        steps(ours, optimizer),
        steps(wrapped, torch.optim.SGD(theirs.parameters(), lr=0.01, momentum=0.9)),
        1,
    )


def cnn() -> nn.Module:
    """A small CNN on images of 3 x 32 x 32: 0.6 million parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


def smaller_mlp() -> nn.Module:
    """3.7 million parameters, in five layers."""
    hidden = [layer for _ in range(3) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10))


def many_layers() -> nn.Module:
    """40 layers of 64 x 64: many small tensors."""
    return nn.Sequential(*[layer for _ in range(40) for layer in (nn.Linear(64, 64), nn.ReLU())])


def _buffers() -> str:
    import inspect

    known = inspect.signature(nn.parallel.DistributedDataParallel).parameters
    return "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"


def hundred() -> tuple[str, Callable[[], object], Callable[[], object], int]:
    tensors = [torch.zeros(1000) for _ in range(100)]
    names = [f"tensor{number}" for number in range(100)]

    def ours() -> None:
        handles = [
            hvd.allreduce_async_(tensor, name=name, op=hvd.Sum) for name, tensor in zip(names, tensors, strict=True)
        ]
        for handle in handles:
            hvd.synchronize(handle)

    def theirs() -> None:
        handles = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for handle in handles:
            handle.wait()

    return "at least 4", ours, theirs, 1


def one_float() -> tuple[str, Callable[[], object], Callable[[], object], int]:
    tensor = torch.zeros(1)
    return "at least 0.5", lambda: hvd.allreduce_(tensor, op=hvd.Sum), lambda: dist.all_reduce(tensor), 20


def sixteen_megabytes() -> tuple[str, Callable[[], object], Callable[[], object], int]:
    tensor = torch.zeros(4_000_000)
    return "at least 0.95", lambda: hvd.allreduce_(tensor, op=hvd.Sum), lambda: dist.all_reduce(tensor), 1


PARTS: dict[str, Callable[[], tuple[str, Callable[[], object], Callable[[], object], int]]] = {
    "DistributedOptimizer, a step": lambda: training(cnn, torch.randn(32, 3, 32, 32)),
    "DistributedOptimizer, 4.2 M MLP": lambda: training(mlp, torch.randn(MLP_BATCH, 784)),
    "DistributedOptimizer, 3.7 M MLP": lambda: training(smaller_mlp, torch.randn(32, 1024)),
    "DistributedOptimizer, 40 layers": lambda: training(many_layers, torch.randn(32, 64)),
    "100 async all-reduces of 1,000 floats": hundred,
    "one all-reduce of one float": one_float,
    "one all-reduce of 16 MB": sixteen_megabytes,
}
HOROVOD_SECONDS = {
    "DistributedOptimizer, 3.7 M MLP": 44.0e-3,
    "DistributedOptimizer, 40 layers": 10.4e-3,
    "100 async all-reduces of 1,000 floats": 2.3e-3,
    "one all-reduce of one float": 1.09e-3,
    "one all-reduce of 16 MB": 16.2e-3,
}
"""medians of real Horovod 0.28.1, by part"""


if __name__ == "__main__":
    main()
