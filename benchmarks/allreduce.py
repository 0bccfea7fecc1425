"""All-reduce of CPU tensors on one host: shared memory against Gloo.

===========================================  ==================================================  ======================
what                                         against                                             target
===========================================  ==================================================  ======================
``world.all_reduce_`` in shared memory       ``torch.distributed.all_reduce`` by Gloo            2 processes: at least
                                                                                                 2 times as fast;
                                                                                                 4: never slower
``hvd.allreduce_`` in shared memory          the same with ``RUEDA_TRANSPORT=gloo``              as above
bytes per second                             a copy of the tensor within one process             beside it
===========================================  ==================================================  ======================

Each size is timed in turns within the same processes, after a barrier each time; the ratio is the median over the
turns. The hvd engine is started twice for each number of processes, once with each transport, and its two runs take
turns only as wholes. With ``--busy`` one process per core computes beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from _common import answer_of, save

KILOBYTE = 1024
SIZES = [4 * KILOBYTE * 4**power for power in range(8)]  # 4 KB to 64 MB
SPIN = "while True: pass"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", default="2,4", help="numbers of processes")
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="bytes of the largest tensor")
    parser.add_argument("--turns", type=int, default=31, help="turns of a tensor below 4 MB; larger ones have fewer")
    parser.add_argument("--busy", action="store_true", help="let other processes occupy all cores")
    parser.add_argument("--part", choices=["world", "hvd"], help="(of a worker)")
    arguments = parser.parse_args()
    if arguments.part:
        (by_world if arguments.part == "world" else by_hvd)(arguments.turns, arguments.largest)
        return
    others = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(os.cpu_count() or 1) if arguments.busy]
    try:
        results = {number: measure(int(number), arguments) for number in arguments.processes.split(",")}
    finally:
        for process in others:
            process.kill()
    name = "allreduce_busy" if arguments.busy else "allreduce"
    save(name, {"turns": arguments.turns, "busy": arguments.busy, "processes": results}, seeds=(0,))


def measure(num_processes: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of each size, by its number of bytes."""

    def run(part: str, **variables: str) -> Any:
        command = [__file__, "--part", part, "--turns", str(arguments.turns), "--largest", str(arguments.largest)]
        os.environ.update(variables)
        answer = answer_of(command, num_processes)
        os.environ.pop("RUEDA_TRANSPORT", None)
        if answer is None:
            sys.exit(f"{part}: a worker failed")
        return answer

    rows: dict[str, dict[str, Any]] = run("world")
    gloo, shared = run("hvd", RUEDA_TRANSPORT="gloo"), run("hvd", RUEDA_TRANSPORT="shared")
    print(f"{num_processes} processes: ms by Gloo, in shared memory, ratio; bytes/s as a share of a copy; hvd likewise")
    for size, row in rows.items():
        row |= {"hvd_gloo": gloo[size], "hvd_shared": shared[size], "hvd_ratio": gloo[size] / shared[size]}
        print(
            f"{int(size) // KILOBYTE:>8} KB {1e3 * row['gloo']:9.3f} {1e3 * row['shared']:9.3f} {row['ratio']:6.2f}"
            f" {row['copy'] / row['shared']:6.2f}   {1e3 * row['hvd_gloo']:9.3f} {1e3 * row['hvd_shared']:9.3f}"
            f" {row['hvd_ratio']:6.2f}",
            flush=True,
        )
    return rows


def turns_of(size: int, turns: int) -> int:
    return turns if size < 1 << 22 else max(7, turns // 3)


def sizes_up_to(largest: int) -> list[int]:
    sizes = [size for size in SIZES if size <= largest]
    return sizes if largest in sizes else [*sizes, largest]


def by_world(turns: int, largest: int) -> None:
    """Time Gloo, shared memory and a copy, in turns."""
    import torch
    import torch.distributed as dist

    import rueda
    from rueda.world.shared_memory.world_group import world_group

    world = rueda.init()
    assert world_group() is not None, "the workers have no shared memory"
    rows = {}
    for size in sizes_up_to(largest):
        torch.manual_seed(world.rank)
        first = torch.randn(size // 4)
        tensors = {name: first.clone() for name in ("gloo", "shared", "copy")}
        reduced: dict[str, Callable[[], object]] = {
            "gloo": lambda: dist.all_reduce(tensors["gloo"]),  # noqa: B023
            "shared": lambda: world.all_reduce_(tensors["shared"]),  # noqa: B023
            "copy": lambda: tensors["copy"].copy_(first),  # noqa: B023
        }
        for name in ("gloo", "shared"):
            reduced[name]()
        assert torch.allclose(tensors["gloo"], tensors["shared"], rtol=1e-5, atol=1e-5)
        bits = tensors["shared"].view(torch.int32)
        assert torch.equal(world.all_reduce(bits, "max"), world.all_reduce(bits, "min")), "the bits differ"
        seconds = in_turns(reduced, turns_of(size, turns), dist.barrier, tensors)
        row = {name: statistics.median(values) for name, values in seconds.items()}
        row["ratio"] = statistics.median(g / s for g, s in zip(seconds["gloo"], seconds["shared"], strict=True))
        rows[str(size)] = row
    if world.is_main:
        print(json.dumps(rows))
    rueda.finish()


def in_turns(
    candidates: Mapping[str, Callable[[], object]], turns: int, barrier: Callable[[], object], tensors: dict[str, Any]
) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(2 + turns):
        for name, run in candidates.items():
            tensors[name].fill_(1.0)  # else the sums would grow without bounds
            barrier()
            begun = time.perf_counter()
            run()
            if turn >= 2:
                seconds[name].append(time.perf_counter() - begun)
    return seconds


def by_hvd(turns: int, largest: int) -> None:
    """Time the all-reduce of the hvd engine, with the transport of the environment."""
    import torch

    import rueda.hvd.torch as hvd

    hvd.init()
    rows = {}
    for size in sizes_up_to(largest):
        tensors = {"hvd": torch.ones(size // 4)}
        reduced = {"hvd": lambda: hvd.allreduce_(tensors["hvd"], name="tensor", op=hvd.Sum)}  # noqa: B023
        seconds = in_turns(reduced, turns_of(size, turns), hvd.barrier, tensors)
        rows[str(size)] = statistics.median(seconds["hvd"])
    if hvd.rank() == 0:
        print(json.dumps(rows))
    hvd.shutdown()


if __name__ == "__main__":
    main()
