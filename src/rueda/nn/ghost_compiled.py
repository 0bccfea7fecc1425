"""Ghost batch norm of channels-last memory on the CPU by a small kernel in C, where a compiler is at hand.

No operation of torch computes a dy + b x + c in one pass, or the sums of many ghosts in one call; 130 lines of C do
both (``ghost_rows.c``). They are compiled when they are first needed, for the processor of this machine, in less than a
second, and kept in the cache folder (:func:`rueda.files.cache.cache_folder`) under a name that is made of the source,
the compiler and the processor, so that machines that share a home do not use each other's. Where there is no compiler,
or with ``RUEDA_KERNELS=off``, `rueda.nn.ghost_rows` computes the same up to rounding.

Ghosts are divided among torch's own threads: the kernel uses the OpenMP library that torch has loaded. Without one
there is no kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rueda.files.cache import cache_folder

VARIABLE = "RUEDA_KERNELS"
_SOURCE = Path(__file__).with_name("ghost_rows.c")
_REAL = {torch.float32: "float", torch.float64: "double"}
_COMPILE_SECONDS = 60.0
_SMALLEST_SHARE = 1 << 16  # values for each thread: fewer are not worth its start


def kernel(dtype: torch.dtype) -> Any | None:
    """Return the compiled functions for numbers of this type; None if they are not wanted or cannot be had."""
    if os.environ.get(VARIABLE) == "off" or dtype not in _REAL:
        return None
    return _load(_REAL[dtype], os.environ.get("CC", "cc"))


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
    """Load the kernel, and compile it before if it is not in the cache folder; None if either fails."""
    program, library = shutil.which(compiler), _openmp()
    if program is None or library is None or not sys.platform.startswith("linux"):
        return None
    options = ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", f"-DREAL={real}"]
    if platform.machine() == "x86_64":
        options.append("-mprefer-vector-width=512")
    try:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)  # what torch has loaded: the kernel finds its names there
        file = cache_folder() / "kernels" / f"ghost_rows-{real}-{_fingerprint(program, options)}.so"
        if file.exists():
            with contextlib.suppress(OSError, AttributeError):  # damaged: it is compiled again
                return _open(file)
        _compile([program, *options], file)
        return _open(file)
    except (OSError, subprocess.SubprocessError, AttributeError):  # a folder that cannot be written, no headers
        return None


def _open(file: Path) -> Any:
    loaded = ctypes.CDLL(str(file))
    for function in (loaded.ghost_forward, loaded.ghost_backward):
        function.restype = ctypes.c_int
    return loaded


def _compile(command: list[str], file: Path) -> None:
    """Compile beside the file and rename, so that processes that do it at once never see half of it.

    The library is not linked with OpenMP's: a second one in the process would start threads of its own.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        unlinked, linked = Path(folder, "kernel.o"), Path(folder, "kernel.so")
        steps = (
            [*[option for option in command if option != "-shared"], "-c", str(_SOURCE), "-o", str(unlinked)],
            [command[0], "-shared", str(unlinked), "-lm", "-o", str(linked)],
        )
        for step in steps:
            subprocess.run(step, check=True, capture_output=True, timeout=_COMPILE_SECONDS)
        os.replace(linked, file)


def _openmp() -> str | None:
    """Return the path of the OpenMP library that torch has loaded."""
    try:
        loaded = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    found = re.search(r"(/\S*lib(?:gomp|iomp5|omp)\b\S*\.so\S*)", loaded)
    return found[1] if found else None


def _fingerprint(program: str, options: list[str]) -> str:
    """Return what a compiled file depends on, as a short name."""
    version = subprocess.run([program, "--version"], check=True, capture_output=True, timeout=_COMPILE_SECONDS).stdout
    cpu = Path("/proc/cpuinfo").read_text()
    lines = {line for line in cpu.splitlines() if line.startswith(("model name", "flags", "Features", "CPU part"))}
    parts = [_SOURCE.read_bytes(), version, *(text.encode() for text in (*options, *sorted(lines)))]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
