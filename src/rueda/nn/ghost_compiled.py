"""Ghost batch norm of channels-last memory on the CPU by a small kernel in C, where a compiler is at hand.

No operation of torch computes a dy + b x + c in one pass, or the sums of many ghosts in one call; 130 lines of C do
both (``ghost_rows.c``). They are compiled when they are first needed (:mod:`rueda.files.kernels`). Where there is no
compiler, or with ``RUEDA_KERNELS=off``, `rueda.nn.ghost_rows` computes the same up to rounding.

Ghosts are divided among torch's own threads: the kernel uses the OpenMP library that torch has loaded. Without one
there is no kernel.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rueda.files import kernels

_SOURCE = Path(__file__).with_name("ghost_rows.c")
_REAL = {torch.float32: "float", torch.float64: "double"}
_SMALLEST_SHARE = 1 << 16  # values for each thread: fewer are not worth its start


def kernel(dtype: torch.dtype) -> Any | None:
    """Return the compiled functions for numbers of this type; None if they are not wanted or cannot be had."""
    if not kernels.are_wanted() or dtype not in _REAL:
        return None
    return _load(_REAL[dtype], kernels.compiler())


def forward_compiled(
    functions: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, sizes: list[int], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise channels-last `x`; return y, and each ghost's mean and biased variance, [G, C]."""
    y = torch.empty_like(x)
    means = x.new_empty(len(sizes), x.shape[1])
    variances = torch.empty_like(means)
    weight, bias = (None if each is None else each.to(x.dtype).contiguous() for each in (weight, bias))
    for examples, ghosts, *shape in _equal_ghosts(x, sizes):
        given = (_at(x[examples]), _at(y[examples]), _at(weight), _at(bias), ctypes.c_double(eps), *shape)
        _call(functions.ghost_forward, *given, _at(means[ghosts]), _at(variances[ghosts]), _threads(x, sizes))
    return y, means, variances


def backward_compiled(
    functions: Any, dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, inverse: Tensor, sizes: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dx, dw and db."""
    dx = torch.empty_like(x)
    sums = mean.new_empty(2, *mean.shape)
    scale = None if weight is None else weight.to(x.dtype).contiguous()
    for examples, ghosts, *shape in _equal_ghosts(x, sizes):
        given = (*(_at(each[examples]) for each in (dy, x, dx)), _at(scale), _at(mean[ghosts]), _at(inverse[ghosts]))
        _call(functions.ghost_backward, *given, *shape, *(_at(each[ghosts]) for each in sums), _threads(x, sizes))
    kind = mean.dtype if weight is None else weight.dtype
    dw, db = sums.sum(1).to(kind)
    return dx, dw, db


def _equal_ghosts(x: Tensor, sizes: list[int]) -> list[tuple[Any, ...]]:
    """Return the examples and ghosts of each size, and their number, rows and channels: only the last may differ."""
    pixels, channels = x[0, 0].numel(), x.shape[1]
    equal = len(sizes) if sizes[-1] == sizes[0] else len(sizes) - 1
    end = equal * sizes[0]
    parts = [(slice(0, end), slice(0, equal), equal, sizes[0])]
    if equal < len(sizes):
        parts.append((slice(end, None), slice(equal, None), 1, sizes[-1]))
    return [
        (examples, ghosts, *map(ctypes.c_long, (number, size * pixels, channels)))
        for examples, ghosts, number, size in parts
    ]


def _threads(x: Tensor, sizes: list[int]) -> int:
    return max(1, min(torch.get_num_threads(), len(sizes), x.numel() // _SMALLEST_SHARE))


def _at(values: Tensor | None) -> ctypes.c_void_p | None:
    return None if values is None else ctypes.c_void_p(values.data_ptr())


def _call(function: Any, *arguments: Any) -> None:
    if function(*arguments):
        raise MemoryError("no memory for the sums of a ghost batch")


# Compiling.


@functools.cache
def _load(real: str, compiler: str) -> Any | None:
    """Load the kernel; None if it cannot be had."""
    library = _openmp()
    if library is None:
        return None
    options = ["-fopenmp", f"-DREAL={real}"]
    if platform.machine() == "x86_64":
        options.append("-mprefer-vector-width=512")
    try:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)  # what torch has loaded: the kernel finds its names there
    except OSError:
        return None
    return kernels.load(_SOURCE, f"ghost_rows-{real}", ("ghost_forward", "ghost_backward"), options, compiler)


def _openmp() -> str | None:
    """Return the path of the OpenMP library that torch has loaded."""
    try:
        loaded = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    found = re.search(r"(/\S*lib(?:gomp|iomp5|omp)\b\S*\.so\S*)", loaded)
    return found[1] if found else None
