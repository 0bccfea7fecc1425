"""What tests of groups in shared memory need: new stores, processes of their own, and a comparison of bits."""

from __future__ import annotations

import os
import socket
import textwrap
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from commandline import environ
from forked import forked

SECONDS = timedelta(seconds=60)
FUZZ = min(100, int(os.environ.get("RUEDA_FUZZ", "0")) // 10)  # how often a rank is killed where that is asked for
_num_groups = 0


def new_store() -> Any:
    global _num_groups
    _num_groups += 1
    return dist.PrefixStore(f"test/{_num_groups}", dist.distributed_c10d._get_default_store())


def assert_same_bits(tensor: Tensor) -> None:
    """Compare the bytes of all ranks through Gloo."""
    mine = tensor.contiguous().view(-1).view(torch.uint8)
    first = mine.clone()
    dist.broadcast(first, 0)
    assert torch.equal(mine, first)


def on_processes(
    size: int, code: str, *words: str, variables: Mapping[str, str] | None = None, stop_after: int | None = None
) -> list[tuple[int, str]]:
    """Run a script on several workers; return exit statuses and outputs. ``stop_after``: kill the others after it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [
        environ(
            RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), **(variables or {}),
        )
        for rank in range(size)
    ]  # fmt: skip
    with forked(textwrap.dedent(code), ranks, *words) as started:
        if stop_after is not None:
            started[stop_after].wait()
            for rank, process in enumerate(started):
                if rank != stop_after:
                    process.kill()
        return [(status, out + err) for status, out, err in (process.wait() for process in started)]
