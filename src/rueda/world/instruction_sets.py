"""Which instruction sets may oneDNN, the library of torch's CPU kernels, use on this machine?

Recent Intel CPUs multiply bf16 matrices in AMX tiles, and oneDNN uses them wherever the CPU advertises them. In some
virtual machines the CPU advertises AMX, the kernel grants its use, and the first tile instruction still ends the
process with SIGILL, *Illegal instruction*: hours of training are lost, and no exception can be caught.

So AMX is tried first, in a child process, which may die: it runs bf16 (and fp16, if the CPU advertises AMX for it)
linear layers, products, convolutions and attention, forward and backward. If it dies, it is tried again with oneDNN
held to lower instruction sets (the environment variable ``ONEDNN_MAX_CPU_ISA``), and the highest that works is used:

====================  ====================================================
(no limit)            everything that the CPU advertises, AMX included
``AVX512_CORE_FP16``  without AMX; native fp16 and bf16
``AVX512_CORE_BF16``  native bf16
``AVX512_CORE``       half precision is emulated in float32
``AVX2``              torch's own kernels instead of oneDNN's
====================  ====================================================

The answer holds until the machine is booted again, and is kept in the cache folder. Nothing is tried on a CPU that
advertises no AMX, or for a recipe that computes in float32. A limit that the user has set is tested, never changed.

oneDNN reads the variable once, when it runs its first kernel: after ``import torch`` is early enough, after the first
convolution is too late, which is an error here (:func:`protect`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from rueda.errors import WorldError
from rueda.files.cache import cache_folder

VARIABLE = "ONEDNN_MAX_CPU_ISA"
LIMITS = ("", "AVX512_CORE_FP16", "AVX512_CORE_BF16", "AVX512_CORE", "AVX2")
"""what is tried, best first; the empty string is no limit"""

_OLD_VARIABLE = "DNNL_MAX_CPU_ISA"
_CPUINFO = Path("/proc/cpuinfo")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_CHILD = (sys.executable, "-m", "rueda.world.instruction_sets")
_CHILD_SECONDS = 120.0
_FAULTS = {-signal.SIGILL, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGFPE}


def advertised(cpuinfo: str) -> tuple[str, ...]:
    """Name the precisions for which a CPU advertises AMX, from the text of ``/proc/cpuinfo``.

    >>> advertised("flags : fpu avx512_bf16 amx_bf16 amx_tile amx_int8"), advertised("flags : fpu avx512_bf16")
    (('bf16',), ())
    """
    line = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "")
    flags = set(line.split())
    return tuple(precision for precision in ("bf16", "fp16") if {"amx_tile", f"amx_{precision}"} <= flags)


def choose_limit(given: str, works: Callable[[str], bool]) -> str:
    """Give the highest limit that works; one that the user has given is the only choice.

    >>> choose_limit("", lambda limit: limit == "AVX2")
    'AVX2'
    >>> choose_limit("AVX512_CORE_AMX", lambda limit: limit == "AVX2")
    Traceback (most recent call last):
    rueda.errors.WorldError: ONEDNN_MAX_CPU_ISA: expected an instruction set that works on this CPU, got
    'AVX512_CORE_AMX'; unset it, and one that works is chosen
    """
    found = next((limit for limit in ((given,) if given else LIMITS) if works(limit)), None)
    if found is None and given:
        raise WorldError(
            VARIABLE,
            expected="an instruction set that works on this CPU",
            got=given,
            do="unset it, and one that works is chosen",
        )
    if found is None:
        raise WorldError("half precision ends the process on this CPU, however it is limited; use precision=float32")
    return found


def limits(environ: Mapping[str, str], precision: str | None = None) -> dict[str, str]:
    """Give the variable that a process must be started with; empty if it needs no limit, or has one that works.

    Args:
        environ: the environment of the process.
        precision: what it will compute in, as in a recipe; None if nobody knows.

    Raises:
        WorldError: half precision was asked for, and no limit works, or not the one that the user has set.
    """
    precisions = _advertised_here()
    if not precisions or precision not in (None, *precisions):
        return {}
    given = environ.get(VARIABLE) or environ.get(_OLD_VARIABLE) or ""
    try:
        limit = choose_limit(given, functools.partial(_remembered, environ=environ, precisions=precisions))
    except WorldError:
        if precision is None:
            return {}  # it may well compute in float32 only
        raise
    return {} if limit == given else {VARIABLE: limit}


def protect(precision: str | None = None, *, speak: bool = True) -> None:
    """Keep half precision from ending this process: limits oneDNN where the CPU's AMX faults.

    Args:
        precision: what this process will compute in, as in a recipe; None if nobody knows.
        speak: say in a line on standard error that there is a limit.

    Raises:
        WorldError: a limit is needed, and oneDNN has already read that there is none.
    """
    limit = limits(os.environ, precision).get(VARIABLE)
    if limit is None:
        return
    if (torch := sys.modules.get("torch")) is not None and limit == "AVX512_CORE_FP16":
        limit = "AVX512_CORE_BF16"  # torch can say whether a limit below fp16 is obeyed; bf16 is as fast
    os.environ[VARIABLE] = limit
    if torch is not None and _exceeds(limit, torch):
        del os.environ[VARIABLE]
        raise WorldError(
            f"this CPU advertises AMX, whose instructions end the process, and oneDNN is already using it; "
            f"export {VARIABLE}={limit} before the program starts, or call rueda.init() before the first layer runs"
        )
    if speak:
        print(f"rueda: {told(limit)}", file=sys.stderr, flush=True)


def told(limit: str) -> str:
    """Say in a line what was found."""
    return f"this CPU advertises AMX, whose instructions end the process here; oneDNN is held to {VARIABLE}={limit}"


def _exceeds(limit: str, torch: Any) -> bool:
    """Ask oneDNN, through torch, whether it uses more than this limit, which is below ``AVX512_CORE_FP16``."""
    fp16, bf16 = torch.ops.mkldnn._is_mkldnn_fp16_supported, torch.ops.mkldnn._is_mkldnn_bf16_supported
    return bool(fp16() or (limit == "AVX2" and bf16()))


@functools.cache
def _advertised_here() -> tuple[str, ...]:
    try:
        return advertised(_CPUINFO.read_text())
    except OSError:  # not Linux
        return ()


def _remembered(limit: str, *, environ: Mapping[str, str], precisions: Iterable[str]) -> bool:
    """Say whether half precision works under a limit: from the cache, else from a child process.

    The file is locked meanwhile, so that of several workers one tries and the others wait for its answer.
    """
    for folder in (cache_folder, lambda: Path(tempfile.gettempdir(), f"rueda-{os.getuid()}")):
        try:
            (home := folder() / "instruction-sets").mkdir(parents=True, exist_ok=True)
            stream = open(home / f"{_machine()}.json", "a+", encoding="utf-8")  # noqa: SIM115 - closed below
        except (OSError, RuntimeError):  # a folder that cannot be written, or no home at all
            continue
        with stream:
            _lock(stream.fileno())
            stream.seek(0)
            known: dict[str, bool] = {}
            with contextlib.suppress(ValueError, TypeError):  # a torn file
                known = dict(json.load(stream))
            if limit not in known and (works := _try(limit, environ, precisions)) is not None:
                known[limit] = works
                with contextlib.suppress(OSError):
                    stream.truncate(0)
                    stream.write(json.dumps(known))
                    stream.flush()
            return known.get(limit, True)
    return _try(limit, environ, precisions) is not False


def _lock(descriptor: int) -> None:
    import fcntl  # not on Windows, whose CPUs are never asked

    with contextlib.suppress(OSError):  # a network file system without locks: then each worker tries
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _machine() -> str:
    """Name this boot of this machine with this torch."""
    lines = _CPUINFO.read_text().splitlines()
    model = next((line for line in lines if line.startswith("model name")), "")
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        version = ""
    return hashlib.sha256("\n".join([_BOOT.read_text(), model, version]).encode()).hexdigest()[:16]


def _try(limit: str, environ: Mapping[str, str], precisions: Iterable[str]) -> bool | None:
    """Run half precision in a child process and say whether it works; None if it failed, but not by a fault."""
    paths = [str(Path(__file__).parents[2]), *filter(None, [environ.get("PYTHONPATH")])]
    own = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(paths)}
    try:
        done = subprocess.run(
            [*_CHILD, *precisions],
            env={**environ, **own, **({VARIABLE: limit} if limit else {})},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_CHILD_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return False if done.returncode in _FAULTS else True if done.returncode == 0 else None


def _compute(precisions: Iterable[str]) -> None:
    """Compute in half precision, forward and backward, what oneDNN has AMX kernels for."""
    import resource

    import torch
    from torch.nn import functional

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a fault is expected, and no file shall be left of it
    for precision in precisions:
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
        results = []
        with torch.autocast("cpu", dtype):
            for rows, inputs, outputs in ((1, 16, 16), (64, 64, 64), (33, 100, 10), (128, 512, 256)):
                data = torch.randn(rows, inputs, requires_grad=True)
                weight = torch.randn(outputs, inputs, requires_grad=True)
                results += [functional.linear(data, weight), torch.bmm(data[None], weight.t()[None])]
            for channels, filters in ((3, 16), (32, 64)):
                images = torch.randn(8, channels, 16, 16, requires_grad=True)
                kernels = torch.randn(filters, channels, 3, 3, requires_grad=True)
                results.append(functional.conv2d(images, kernels, padding=1))
            query = torch.randn(2, 4, 64, 32, requires_grad=True)
            results.append(functional.scaled_dot_product_attention(query, query, query))
        torch.autograd.backward([result.float().sum() for result in results])


if __name__ == "__main__":
    _compute(sys.argv[1:])
