"""All-reduce of CPU tensors on several hosts: shared memory within and sockets between them, against Gloo.

===========================================  ==================================================  ======================
what                                         against                                             target
===========================================  ==================================================  ======================
``world.all_reduce_`` on several hosts       ``torch.distributed.all_reduce`` by Gloo between    never below 0.95 times
                                             all ranks                                           as fast; faster where
                                                                                                 the wire is the limit
===========================================  ==================================================  ======================

The hosts are network namespaces of this machine, on one bridge, and their links are limited by a token bucket filter
(``tc ... tbf``) to 1 and to 10 Gbit/s, or not at all. All ranks of all hosts share this machine's cores, so what is
measured without a limit is the cost in processor time. It needs root on Linux, ``ip`` and ``tc``.

Each size is timed in turns within the same processes, after a barrier each time; the ratio is the median over the
turns. Gloo's ring over N ranks sends 2 (N - 1) / N of the tensor from every host and to it, where the ranks of a host
follow each other; between H hosts 2 (H - 1) / H are needed. So on two hosts with two ranks each the wire allows 1.5
times as much.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from _common import save
from allreduce import KILOBYTE, compared, sizes_up_to

LINKS = {"1 Gbit/s": "1gbit", "10 Gbit/s": "10gbit", "unlimited": ""}
LARGEST = 1 << 26


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=2, help="number of hosts")
    parser.add_argument("--ranks", type=int, default=2, help="ranks on each host")
    parser.add_argument("--links", default=",".join(LINKS), help="speeds of the links")
    parser.add_argument("--largest", type=int, default=LARGEST, help="bytes of the largest tensor")
    parser.add_argument("--turns", type=int, default=31, help="turns of a tensor below 4 MB; larger ones have fewer")
    parser.add_argument("--seconds", type=float, default=20.0, help="after which no more turns of a size are begun")
    parser.add_argument("--part", choices=["world"], help="(of a worker)")
    arguments = parser.parse_args()
    if arguments.part:
        by_world(arguments)
        return
    results = {link: measure(link, arguments) for link in arguments.links.split(",")}
    about = {"hosts": arguments.hosts, "ranks_per_host": arguments.ranks, "turns": arguments.turns}
    save("allreduce_hosts", {**about, "links": results}, seeds=(0,))


def measure(link: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of each size over links of one speed, by its number of bytes."""
    command = [sys.executable, __file__, "--part", "world", "--turns", str(arguments.turns)]
    command += ["--largest", str(arguments.largest), "--seconds", str(arguments.seconds)]
    with hosts(arguments.hosts, LINKS[link]) as names:
        processes = []
        size = arguments.hosts * arguments.ranks
        for rank in range(size):
            host, local_rank = divmod(rank, arguments.ranks)
            environ = {
                **os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(arguments.ranks),
                "MASTER_ADDR": "10.78.0.2", "MASTER_PORT": "29500", "RUEDA_TRANSPORT": "shared",
                "PRETENDED_HOST": names[host],
            }  # fmt: skip
            stdout = subprocess.DEVNULL if rank else subprocess.PIPE
            inside = ["ip", "netns", "exec", names[host], *command]
            processes.append(subprocess.Popen(inside, env=environ, text=True, stdout=stdout))
        answer = processes[0].communicate()[0]
        if sum(abs(process.wait()) for process in processes):
            sys.exit(f"{link}: a worker failed")
    rows: dict[str, dict[str, Any]] = json.loads(answer.strip().splitlines()[-1])
    print(
        f"{arguments.hosts} hosts of {arguments.ranks} ranks, {link}, ms: by Gloo, in place, times as fast, "
        "times as little of the processor's time (of this process)"
    )
    for num_bytes, row in rows.items():
        print(
            f"{int(num_bytes) // KILOBYTE:>8} KB {1e3 * row['gloo']:9.3f} {1e3 * row['hosts']:9.3f}"
            f" {row['ratio']:6.2f} {row['gloo_processor'] / row['hosts_processor']:6.2f}",
            flush=True,
        )
    return rows


@contextlib.contextmanager
def hosts(number: int, rate: str) -> Iterator[list[str]]:
    """Make network namespaces, 10.78.0.2 and so on, on the bridge of another one."""
    prefix = f"rueda-bench{os.getpid()}-"
    names = [f"{prefix}{host}" for host in range(number)]
    bridge = f"{prefix}bridge"
    try:
        _run(f"ip netns add {bridge}")
        _run(f"ip -n {bridge} link add bridge type bridge")
        _run(f"ip -n {bridge} link set bridge up")
        for host, name in enumerate(names):
            _run(f"ip netns add {name}")
            _run(f"ip -n {name} link set lo up")
            _run(f"ip -n {bridge} link add to-{host} type veth peer name net0 netns {name}")
            _run(f"ip -n {bridge} link set to-{host} master bridge up")
            _run(f"ip -n {name} addr add 10.78.0.{host + 2}/24 dev net0")
            _run(f"ip -n {name} link set net0 up")
            if rate:
                burst = "1mb" if rate == "10gbit" else "128kb"  # more than a packet has, little beside a tensor
                _run(f"tc -n {name} qdisc replace dev net0 root tbf rate {rate} burst {burst} latency 20ms")
        yield names
    finally:
        for name in (*names, bridge):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _run(command: str) -> None:
    try:
        subprocess.run(command.split(), check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"network namespaces cannot be made here: {command}: {getattr(error, 'stderr', '') or error}")


def by_world(arguments: argparse.Namespace) -> None:
    """Time Gloo between all ranks, and shared memory within hosts, in turns."""
    import torch
    import torch.distributed as dist

    import rueda
    from rueda.world.shared_memory import transport
    from rueda.world.shared_memory.world_group import world_group

    transport._host = lambda: os.environ["PRETENDED_HOST"]
    world = rueda.init()
    group = world_group()
    assert group is not None and group.transport == "shared memory within hosts"
    rows = {}
    for size in world.broadcast_object(sizes_up_to(arguments.largest, world.size)):
        torch.manual_seed(world.rank)
        first = torch.randn(size // 4)
        tensor = first.clone()
        reduced: dict[str, Callable[[], object]] = {
            "gloo": lambda: dist.all_reduce(tensor),  # noqa: B023
            "hosts": lambda: world.all_reduce_(tensor),  # noqa: B023
        }
        rows[str(size)] = compared(world, first, tensor, reduced, "hosts", arguments)
    if world.is_main:
        print(json.dumps(rows))
    rueda.finish()


if __name__ == "__main__":
    main()
