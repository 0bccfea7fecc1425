"""GhostBatchNorm2d, with its compiled kernel and without, against nn.BatchNorm2d and against chunk-and-concatenate.

    python benchmarks/ghost_batch_norm.py [--repeats 30] [--wall]

Forward and backward pass of 512 x 64 x 16 x 16 float32, ghosts of 32, one thread, processor time; contiguous and
channels-last memory; with the memory allocator as it is, and as `rueda.init` tunes it (freed memory kept, so that no
time goes into page faults). Before each layer's turn, untimed, 256 MiB of other memory are touched, as the layers
around it in a model would: otherwise a layer's time depends on which one ran before it, by 4 to 8 %. The bar: at most
1.05 times BatchNorm's time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from _common import compare, ratio, save
from rueda.files.kernels import VARIABLE
from rueda.nn import GhostBatchNorm2d
from rueda.nn.ghost_compiled import kernel
from rueda.world import malloc

SHAPE, GHOST = (512, 64, 16, 16), 32
OTHER_BYTES = 256 << 20


class ChunkAndConcatenate(nn.BatchNorm2d):
    """The usual implementation: BatchNorm on every chunk, then one concatenation."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each chunk."""
        return torch.cat([super(ChunkAndConcatenate, self).forward(part) for part in torch.split(x, GHOST)])


class WithoutKernel(GhostBatchNorm2d):
    """Ghost batch norm as on a machine without a compiler."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise with torch's operations."""
        os.environ[VARIABLE] = "off"
        try:
            return super().forward(x)
        finally:
            del os.environ[VARIABLE]


def step(layer: nn.Module, x: Tensor, dy: Tensor) -> Callable[[], None]:
    def run() -> None:
        torch.autograd.grad(layer(x), [x, *layer.parameters()], dy)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--wall", action="store_true", help="measure wall-clock time instead of processor time")
    arguments = parser.parse_args()
    repeats: int = arguments.repeats
    clock = time.perf_counter if arguments.wall else time.process_time
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = {
        "BatchNorm2d": nn.BatchNorm2d(SHAPE[1]),
        "GhostBatchNorm2d": GhostBatchNorm2d(SHAPE[1], ghost_batch=GHOST),
        "without kernel": WithoutKernel(SHAPE[1], ghost_batch=GHOST),
        "chunk and concatenate": ChunkAndConcatenate(SHAPE[1]),
    }
    other = torch.zeros(OTHER_BYTES // 4)
    table = Table("memory", "malloc", *(f"{name}, ms" for name in layers), "ghost / BN", "without / BN", "chunks / BN")
    rows: list[dict[str, Any]] = []
    for allocator in ("default", "as rueda.init sets it"):
        if allocator != "default" and not malloc.tune():
            continue
        for memory in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(SHAPE).contiguous(memory_format=memory).requires_grad_()
            dy = torch.randn(SHAPE).contiguous(memory_format=memory)
            candidates: dict[str, Callable[[], object]] = {}
            for name, layer in layers.items():
                candidates |= {f"before {name}": lambda: other.add_(1), name: step(layer, x, dy)}
            seconds = compare(candidates, repeats, clock=clock)
            row: dict[str, Any] = {
                "memory": str(memory).removeprefix("torch."),
                "malloc": allocator,
                "milliseconds": {name: round(1e3 * statistics.median(seconds[name]), 2) for name in layers},
                "ratio": round(ratio(seconds, "GhostBatchNorm2d", "BatchNorm2d"), 3),
                "ratio_without_kernel": round(ratio(seconds, "without kernel", "BatchNorm2d"), 3),
                "ratio_chunks": round(ratio(seconds, "chunk and concatenate", "BatchNorm2d"), 3),
            }
            rows.append(row)
            times = [f"{row['milliseconds'][name]:.1f}" for name in layers]
            ratios = [f"{row[name]:.3f}" for name in ("ratio", "ratio_without_kernel", "ratio_chunks")]
            table.add_row(row["memory"], allocator, *times, *ratios)
    Console(width=140).print(table)
    save(
        "ghost_batch_norm",
        {"shape": SHAPE, "ghost_batch": GHOST, "repeats": repeats, "clock": clock.__name__, "rows": rows}
        | {"has_kernel": kernel(torch.float32) is not None},
        seeds=(0,),
    )
    for allocator in dict.fromkeys(row["malloc"] for row in rows):
        against = ", ".join(f"{row['ratio']:.3f}x {row['memory']}" for row in rows if row["malloc"] == allocator)
        print(f"GhostBatchNorm2d against BatchNorm2d (bar 1.05x), malloc {allocator}: {against}")


if __name__ == "__main__":
    main()
