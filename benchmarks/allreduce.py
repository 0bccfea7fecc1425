"""All-reduce of CPU tensors on one host: shared memory against Gloo.

===========================================  ==================================================  ======================
what                                         against                                             target
===========================================  ==================================================  ======================
``world.all_reduce_`` in shared memory       ``torch.distributed.all_reduce`` by Gloo            2 processes: at least
                                                                                                 2 times as fast;
                                                                                                 4: never slower
``world.all_reduce``, into a new tensor      the same                                            beside it
``hvd.allreduce_`` in shared memory          the same with ``RUEDA_TRANSPORT=gloo``              as above
``hvd.allreduce``, into a new tensor         the same with ``RUEDA_TRANSPORT=gloo``              beside it
bytes per second                             a copy of the tensor, by all processes at once      beside it
===========================================  ==================================================  ======================

Each size is timed in turns within the same processes, after a barrier each time; the ratio is the median over the
turns. A tensor below 4 MB is reduced ten times in a row in each turn, and a tenth of the time is given: ranks leave a
barrier up to a tenth of a millisecond apart, which a single reduction of a few KB would be measured with. The hvd
engine is started twice for each number of processes, once with each transport, and its two runs take turns only as
wholes. All of it is measured twice: without other work, and *busy*, where one process per core computes beside them;
these end with this one. ``--quiet`` and ``--busy`` measure one of the two, and keep the other of the same commit in the
result file. The targets hold for both.

A copy reads each byte once and writes it once. An all-reduce over N processes cannot do with less than reading the
N - 1 buffers of the others and writing the result, if its own is in the cache: N transfers instead of 2, so it takes at
least N / 2 copies. This is the limit of which the share is given. The processes here do more: with N = 2, a process
reads and writes to fill its slot, and reads two buffers and writes one to add them, which are 5 transfers where the
cache keeps nothing, and 2 / 5 of the limit. Where other programs run, the share of the processor's time says more than
that of the clock; both are given.

A large tensor has fewer turns, and no more are begun for a size after ``--seconds``; a size for which the memory does
not suffice is left out. ``turns`` says how many there were.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from _common import answer_of, earlier, save

KILOBYTE = 1024
SIZES = [4 * KILOBYTE * 4**power for power in range(9)]  # 4 KB to 256 MB
COPIES = 5  # that a process has of a tensor: its own, the source of a copy, a result, and those of Gloo
SPIN = "import os; parent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", default="2,4", help="numbers of processes")
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="bytes of the largest tensor")
    parser.add_argument("--turns", type=int, default=31, help="turns of a tensor below 4 MB; larger ones have fewer")
    parser.add_argument("--seconds", type=float, default=5.0, help="after which no more turns of a size are begun")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--quiet", action="store_true", help="only without other work")
    only.add_argument("--busy", action="store_true", help="only while other processes occupy all cores")
    parser.add_argument("--part", choices=["world", "hvd"], help="(of a worker)")
    arguments = parser.parse_args()
    if arguments.part:
        (by_world if arguments.part == "world" else by_hvd)(arguments)
        return
    results = {name: earlier("allreduce").get(name, {}) for name in ("quiet", "busy")}
    for name, skipped in (("quiet", arguments.busy), ("busy", arguments.quiet)):
        if not skipped:
            with busy_cores() if name == "busy" else contextlib.nullcontext():
                print(f"{name}:")
                for number in arguments.processes.split(","):
                    results[name][number] = measure(int(number), arguments)
    save("allreduce", {"turns": arguments.turns, **results}, seeds=(0,))


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """Let a process of its own compute on each core."""
    others = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in others:
            process.kill()
            process.wait()


def measure(num_processes: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of each size, by its number of bytes."""

    def run(part: str, **variables: str) -> Any:
        command = [__file__, "--part", part, "--turns", str(arguments.turns), "--largest", str(arguments.largest)]
        os.environ.update(variables)
        answer = answer_of([*command, "--seconds", str(arguments.seconds)], num_processes)
        os.environ.pop("RUEDA_TRANSPORT", None)
        if answer is None:
            sys.exit(f"{part}: a worker failed")
        return answer

    rows: dict[str, dict[str, Any]] = run("world")
    gloo, shared = run("hvd", RUEDA_TRANSPORT="gloo"), run("hvd", RUEDA_TRANSPORT="shared")
    print(
        f"{num_processes} processes, ms: by Gloo, in place, share of the limit by the clock and by the processor, times"
        " as fast; fresh result, times as fast; hvd: by Gloo, in place, times as fast, fresh, times as fast"
    )
    rows = {size: row for size, row in rows.items() if size in gloo and size in shared}  # free memory may have changed
    for size, row in rows.items():
        row["share_of_a_copy"] = row["copy"] / row["shared"]
        row["share_of_the_limit"] = num_processes / 2 * row["copy"] / row["shared"]
        row["share_of_the_limit_processor"] = num_processes / 2 * row["copy_processor"] / row["shared_processor"]
        for form in ("", "_fresh"):
            row |= {f"hvd_gloo{form}": gloo[size]["hvd" + form], f"hvd_shared{form}": shared[size]["hvd" + form]}
            row[f"hvd_ratio{form}"] = row[f"hvd_gloo{form}"] / row[f"hvd_shared{form}"]
        print(
            f"{int(size) // KILOBYTE:>8} KB {1e3 * row['gloo']:9.3f} {1e3 * row['shared']:9.3f}"
            f" {row['share_of_the_limit']:6.2f} {row['share_of_the_limit_processor']:6.2f}"
            f" {row['ratio']:6.2f} {1e3 * row['fresh']:9.3f} {row['ratio_fresh']:6.2f}"
            f"   {1e3 * row['hvd_gloo']:9.3f} {1e3 * row['hvd_shared']:9.3f} {row['hvd_ratio']:6.2f}"
            f" {1e3 * row['hvd_shared_fresh']:9.3f} {row['hvd_ratio_fresh']:6.2f}",
            flush=True,
        )
    return rows


def turns_of(size: int, turns: int) -> int:
    """Return the turns of a tensor: 3 at 256 MB, if a small one has 31."""
    return turns if size < 1 << 22 else max(3, turns // (3 if size < 1 << 26 else 10))


def in_a_row(size: int) -> int:
    """Return how often a tensor is reduced between two barriers."""
    return 10 if size < 1 << 22 else 1


def sizes_up_to(largest: int, num_processes: int) -> list[int]:
    from rueda.world.host_memory import available_bytes

    sizes = [size for size in SIZES if size <= largest]
    sizes = sizes if largest in sizes else [*sizes, largest]
    free = available_bytes()
    return [size for size in sizes if free is None or COPIES * size * num_processes < free]


def by_world(arguments: argparse.Namespace) -> None:
    """Time Gloo, shared memory in place and into a new tensor, and a copy, in turns."""
    import torch
    import torch.distributed as dist

    import rueda
    from rueda.world.shared_memory.world_group import world_group

    world = rueda.init()
    assert world_group() is not None, "the workers have no shared memory"
    rows = {}
    for size in world.broadcast_object(sizes_up_to(arguments.largest, world.size)):
        torch.manual_seed(world.rank)
        first = torch.randn(size // 4)
        tensor = first.clone()
        reduced: dict[str, Callable[[], object]] = {
            "gloo": lambda: dist.all_reduce(tensor),  # noqa: B023
            "shared": lambda: world.all_reduce_(tensor),  # noqa: B023
            "fresh": lambda: world.all_reduce(tensor),  # noqa: B023
            "copy": lambda: tensor.copy_(first),  # noqa: B023
        }
        row = compared(world, first, tensor, reduced, "shared", arguments)
        rows[str(size)] = row
    if world.is_main:
        print(json.dumps(rows))
    rueda.finish()


def compared(
    world: Any, first: Any, tensor: Any, reduced: Mapping[str, Callable[[], object]], name: str,
    arguments: argparse.Namespace,
) -> dict[str, Any]:  # fmt: skip
    """Check the results of all forms of one size, and return their medians and by how much they beat Gloo.

    Args:
        world: the world.
        first: what this process contributes.
        tensor: a copy of it, which the forms overwrite.
        reduced: the forms; ``gloo`` is one of them.
        name: the form whose bits must be the same on all ranks.
        arguments: of the command line.
    """
    import torch
    import torch.distributed as dist

    reduced["gloo"]()
    assert torch.allclose(tensor, world.all_reduce(first), rtol=1e-5, atol=1e-5)
    tensor.copy_(first)
    reduced[name]()
    bits = tensor.view(torch.int32)
    assert torch.equal(world.all_reduce(bits, "max"), world.all_reduce(bits, "min")), "the bits differ"
    del bits

    def longest(seconds: float) -> float:
        elapsed = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(elapsed, dist.ReduceOp.MAX)
        return elapsed.item()

    seconds = in_turns(reduced, turns_of(tensor.nbytes, arguments.turns), arguments.seconds, longest, tensor)
    row: dict[str, Any] = {form: statistics.median(values) for form, values in seconds.items()}
    row["turns"], row["in_a_row"] = len(seconds["gloo"]), in_a_row(tensor.nbytes)
    for ratio, form in (("ratio", name), ("ratio_fresh", "fresh")):
        if form in reduced:
            row[ratio] = statistics.median(g / s for g, s in zip(seconds["gloo"], seconds[form], strict=True))
    return row


def in_turns(
    candidates: Mapping[str, Callable[[], object]],
    turns: int,
    limit: float,
    longest: Callable[[float], float],
    tensor: Any,
) -> dict[str, list[float]]:
    """Time all candidates once in each turn, by the clock and (``NAME_processor``) by the time of the processor.

    Args:
        candidates: what is timed, by name.
        turns: how many turns, after a first one that does not count, nor does a second one of small tensors.
        limit: the seconds after which no more turns are begun.
        longest: returns the largest of all processes' numbers, which is also the barrier.
        tensor: what they work on.
    """
    seconds: dict[str, list[float]] = {f"{name}{by}": [] for name in candidates for by in ("", "_processor")}
    start = time.perf_counter()
    unmeasured = 2 if tensor.nbytes < 1 << 26 else 1
    repeats = in_a_row(tensor.nbytes)
    for turn in range(unmeasured + turns):
        if turn > unmeasured and longest(time.perf_counter() - start) > limit:
            break
        for name, run in candidates.items():
            tensor.fill_(1.0)  # else the sums would grow without bounds
            longest(0.0)
            begun, used = time.perf_counter(), time.process_time()
            for _ in range(repeats):
                run()
            if turn >= unmeasured:
                seconds[name].append((time.perf_counter() - begun) / repeats)
                seconds[f"{name}_processor"].append((time.process_time() - used) / repeats)
    return seconds


def by_hvd(arguments: argparse.Namespace) -> None:
    """Time the all-reduce of the hvd engine, with the transport of the environment."""
    import torch

    import rueda.hvd.torch as hvd

    hvd.init()

    def longest(seconds: float) -> float:
        return hvd.allreduce(torch.tensor([seconds], dtype=torch.float64), op=hvd.Max).item()

    rows = {}
    for size in hvd.broadcast_object(sizes_up_to(arguments.largest, hvd.size())):
        tensor = torch.ones(size // 4)
        reduced: dict[str, Callable[[], object]] = {
            "hvd": lambda: hvd.allreduce_(tensor, name="tensor", op=hvd.Sum),  # noqa: B023
            "hvd_fresh": lambda: hvd.allreduce(tensor, name="tensor", op=hvd.Sum),  # noqa: B023
        }
        seconds = in_turns(reduced, turns_of(size, arguments.turns), arguments.seconds, longest, tensor)
        rows[str(size)] = {name: statistics.median(values) for name, values in seconds.items()}
    if hvd.rank() == 0:
        print(json.dumps(rows))
    hvd.shutdown()


if __name__ == "__main__":
    main()
