"""Choose the instruction sets that oneDNN, the library of torch's CPU kernels, may use on this machine.

Recent Intel CPUs multiply bf16 matrices in AMX tiles, and oneDNN uses them wherever the CPU advertises them. In some
virtual machines the CPU advertises AMX, the kernel grants its use, and the first tile instruction still ends the
process with SIGILL, *Illegal instruction*: hours of training are lost, and no exception can be caught.

So AMX is tried first in a child process, which may crash: the child runs bf16 (and fp16, if the CPU advertises AMX for
it) linear layers, matrix products, convolutions and attention, forward and backward. If it crashes, the test is run
again with oneDNN limited to lower and lower instruction sets (environment variable ``ONEDNN_MAX_CPU_ISA``), and the
highest that works is used:

====================  ====================================================
(no limit)            everything that the CPU advertises, AMX included
``AVX512_CORE_FP16``  without AMX; native fp16 and bf16
``AVX512_CORE_BF16``  native bf16
``AVX512_CORE``       half precision is emulated in float32
``AVX2``              torch's own kernels run instead of oneDNN's
====================  ====================================================

The result is valid until the machine is rebooted, and is kept in the cache folder. Nothing is tried on a CPU that does
not advertise AMX, or for a recipe in float32, unless the task has code of its own, which may compute in half precision
by itself. A limit that the user has set is tested, never changed. Where nothing could be tried (the child did not start
or timed out), half precision runs under a limit without AMX.

oneDNN reads the variable once, when it runs its first kernel: it may still be set after ``import torch``, but not after
the first convolution. If it is too late and half precision was asked for, :func:`protect` raises an error. If it is too
late and the precision is not known, ``torch.autocast`` raises it when it is entered for half precision on the CPU;
tensors that the program itself converts to bf16 cannot be refused so, and a line says it.
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
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from rueda.errors import WorldError
from rueda.files.cache import cache_folder

VARIABLE = "ONEDNN_MAX_CPU_ISA"
LIMITS = ("", "AVX512_CORE_FP16", "AVX512_CORE_BF16", "AVX512_CORE", "AVX2")
"""the limits that are tried, best first; the empty string means no limit"""
_VERIFIABLE = tuple(limit for limit in LIMITS if limit != "AVX512_CORE_FP16")
"""the limits for which an imported torch can tell whether oneDNN obeys them; the one left out is no faster for bf16"""
_SAFE = ("AVX512_CORE_BF16", "AVX512_CORE", "AVX2")
"""limits without AMX; under a limit, oneDNN uses only those instruction sets that the CPU supports"""

_OLD_VARIABLE = "DNNL_MAX_CPU_ISA"
_CPUINFO = Path("/proc/cpuinfo")
_NVIDIA = ("/dev/nvidia0", "/proc/driver/nvidia")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_CHILD = (sys.executable, "-m", "rueda.world.instruction_sets")
_TRYING_SECONDS = 120.0  # for all limits together
_UNTRIED_SECONDS = 600.0  # a limit that could not be tried is not tried again for so long
_NAMES = {"torch.bfloat16": "bf16", "torch.float16": "fp16"}
_FAULTS = {-signal.SIGILL, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGFPE}

_answers: dict[str, bool | None] = {}
"""whether each limit works, as far as this process knows; None if it could not be tried"""
_child: subprocess.Popen[bytes] | None = None


def advertised(cpuinfo: str) -> tuple[str, ...]:
    """Return the precisions for which a CPU advertises AMX, from the text of ``/proc/cpuinfo``.

    >>> advertised("flags : fpu avx512_bf16 amx_bf16 amx_tile amx_int8"), advertised("flags : fpu avx512_bf16")
    (('bf16',), ())
    """
    line = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "")
    flags = set(line.split())
    return tuple(precision for precision in ("bf16", "fp16") if {"amx_tile", f"amx_{precision}"} <= flags)


def has_gpu(environ: Mapping[str, str]) -> bool:
    """Return whether processes with these variables compute on an NVIDIA GPU, as far as is known without torch."""
    if wanted := environ.get("RUEDA_DEVICE"):
        return wanted == "cuda"
    return environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1") and any(map(os.path.exists, _NVIDIA))


def choose_limit(
    given: str, works: Callable[[str], bool | None], *, name: str = VARIABLE, among: Sequence[str] = LIMITS
) -> str:
    """Return the highest limit that works, or a safe one if none could be tried; a limit that the user set is kept.

    Args:
        given: the user's own limit; the empty string if there is none.
        works: returns whether half precision works under a limit; None if that could not be tried.
        name: the variable that the user has set.
        among: the limits to choose from, best first.

    >>> choose_limit("", lambda limit: limit == "AVX2"), choose_limit("", lambda limit: None)
    ('AVX2', 'AVX512_CORE_BF16')
    >>> choose_limit("AVX512_CORE_AMX", lambda limit: limit == "AVX2")
    Traceback (most recent call last):
    rueda.errors.WorldError: ONEDNN_MAX_CPU_ISA: expected an instruction set that works on this CPU, got
    'AVX512_CORE_AMX'; unset it, and one that works is chosen
    """
    if given:
        if works(given) is False:
            raise WorldError(
                name,
                expected="an instruction set that works on this CPU",
                got=given,
                do="unset it, and one that works is chosen",
            )
        return given
    answers: dict[str, bool | None] = {}
    for limit in among:
        answers[limit] = works(limit)
        if answers[limit]:
            return limit
    untried = next((limit for limit in _SAFE if answers.get(limit) is None), None)
    if untried is None:
        raise WorldError("half precision crashes on this CPU under every limit; use precision=float32")
    return untried


def limits(environ: Mapping[str, str], precision: str | None = None, among: Sequence[str] = LIMITS) -> dict[str, str]:
    """Return the environment variable to start a process with; empty if it needs no limit or has one that works.

    Args:
        environ: the environment of the process.
        precision: its precision, as in a recipe; None if it is not known.
        among: the limits to choose from, best first.

    Raises:
        WorldError: half precision was asked for, but no limit works, or the user has set one that does not work.
    """
    precisions = _advertised_here()
    if not precisions or precision not in (None, *precisions):
        return {}
    name = next((name for name in (VARIABLE, _OLD_VARIABLE) if environ.get(name)), VARIABLE)
    given = environ.get(name, "")
    deadline = time.monotonic() + _TRYING_SECONDS
    works = functools.partial(_remembered, environ=environ, precisions=precisions, deadline=deadline)
    try:
        if precision is None and works(given) is None:
            return {}  # AMX could not be tried, and the process may compute in float32 only
        limit = choose_limit(given, works, name=name, among=among)
    except WorldError:
        if precision is None:
            return {}
        raise
    return {} if limit == given else {VARIABLE: limit}


def protect(precision: str | None = None, *, speak: bool = True) -> None:
    """Protect this process from AMX instructions that crash it, by limiting oneDNN.

    If oneDNN has already started without a limit and the precision is not known, a warning is printed, and
    ``torch.autocast`` refuses half precision on the CPU from then on.

    Args:
        precision: the precision of this process, as in a recipe; None if it is not known.
        speak: print a line to standard error if a limit is set.

    Raises:
        WorldError: half precision was asked for, but oneDNN has already started without a limit.
    """
    torch = sys.modules.get("torch")
    limit = limits(os.environ, precision, LIMITS if torch is None else _VERIFIABLE).get(VARIABLE)
    if limit is None:
        return
    os.environ[VARIABLE] = limit
    faults = _answers.get("", False) is False
    if torch is None or not _exceeds(limit, torch):
        if speak:
            _print(told(limit, faults=faults))
        return
    del os.environ[VARIABLE]
    late = (
        f"{_reason(faults)}, and oneDNN is already using it; export {VARIABLE}={limit} before the program starts, or "
        "call rueda.init() before the first layer runs"
    )
    if precision is not None:
        raise WorldError(late)
    _refuse_autocast(torch.autocast, late)
    if speak:
        _print_once(f"{late} (float32 is not affected; torch.autocast will refuse half precision on the CPU)")


def _refuse_autocast(autocast: Any, reason: str) -> None:
    """Make ``torch.autocast`` raise an error when it is entered for half precision on the CPU, which would crash."""
    enter = autocast.__enter__
    if getattr(enter, "refuses", False):
        return

    @functools.wraps(enter)
    def checked(region: Any) -> Any:
        if region.device == "cpu" and region._enabled and _NAMES.get(str(region.fast_dtype)) in _advertised_here():
            raise WorldError(reason)
        return enter(region)

    checked.refuses = True  # type: ignore[attr-defined]
    autocast.__enter__ = checked


def told(limit: str, *, faults: bool = True) -> str:
    """Return the line that reports a limit; ``faults`` is False where AMX could not be tried."""
    return f"{_reason(faults)}; oneDNN is limited to {VARIABLE}={limit}"


def _reason(faults: bool) -> str:
    return "this CPU advertises AMX, " + (
        "but its instructions crash the process here" if faults else "but it could not be tried here"
    )


def _print(line: str) -> None:
    print(f"rueda: {line}", file=sys.stderr, flush=True)


_print_once = functools.cache(_print)


def _exceeds(limit: str, torch: Any) -> bool:
    """Return whether oneDNN uses more than ``limit`` (below ``AVX512_CORE_FP16``), according to torch."""
    fp16, bf16 = torch.ops.mkldnn._is_mkldnn_fp16_supported, torch.ops.mkldnn._is_mkldnn_bf16_supported
    return bool(fp16() or (limit == "AVX2" and bf16()))


@functools.cache
def _advertised_here() -> tuple[str, ...]:
    try:
        return advertised(_CPUINFO.read_text())
    except OSError:  # not Linux
        return ()


def _remembered(limit: str, *, environ: Mapping[str, str], precisions: Iterable[str], deadline: float) -> bool | None:
    """Return whether half precision works under a limit, remembered in this process; None if it could not be tried."""
    if limit not in _answers:
        _answers[limit] = _cached(limit, environ, precisions, deadline)
    return _answers[limit]


def _cached(limit: str, environ: Mapping[str, str], precisions: Iterable[str], deadline: float) -> bool | None:
    """Return the answer in the cache file; if there is none, try the limit in a child process and write the answer.

    The file is locked, so that one of several workers tries and the others wait for its answer. For a limit that could
    not be tried, the file keeps the time of the attempt for a while.
    """
    for folder in (cache_folder, lambda: Path(tempfile.gettempdir(), f"rueda-{os.getuid()}")):
        try:
            (home := folder() / "instruction-sets").mkdir(parents=True, exist_ok=True)
            stream = open(home / f"{_machine()}.json", "a+", encoding="utf-8")  # noqa: SIM115 - closed below
        except (OSError, RuntimeError):  # not writable, or no home directory
            continue
        with stream:
            _lock(stream.fileno())
            stream.seek(0)
            known: dict[str, bool | float] = {}
            with contextlib.suppress(ValueError, TypeError):  # a damaged file
                known = dict(json.load(stream))
            answer = known.get(limit)
            if isinstance(answer, bool):
                return answer
            if isinstance(answer, float) and 0 <= time.time() - answer < _UNTRIED_SECONDS:
                return None
            works = _try(limit, environ, precisions, deadline)
            known[limit] = time.time() if works is None else works
            with contextlib.suppress(OSError):
                stream.truncate(0)
                stream.write(json.dumps(known))
                stream.flush()
            return works
    return _try(limit, environ, precisions, deadline)


def _lock(descriptor: int) -> None:
    import fcntl  # not on Windows, where AMX is never tried

    with contextlib.suppress(OSError):  # a network file system without locks: each worker tries by itself
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _machine() -> str:
    """Return a key for this boot of this machine and this version of torch."""
    lines = _CPUINFO.read_text().splitlines()
    model = next((line for line in lines if line.startswith("model name")), "")
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        version = ""
    return hashlib.sha256("\n".join([_BOOT.read_text(), model, version]).encode()).hexdigest()[:16]


def _try(limit: str, environ: Mapping[str, str], precisions: Iterable[str], deadline: float) -> bool | None:
    """Return whether half precision works in a child process; None if it failed without such a crash or timed out.

    The child's working directory is ``/``: ``python -m`` imports from the working directory first, where the user's
    own ``random.py`` would hide the standard library's.
    """
    global _child
    if time.monotonic() > deadline:
        return None
    given = (os.path.abspath(path) for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path)
    paths = os.pathsep.join([str(Path(__file__).resolve().parents[2]), *given])
    own = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": paths}
    try:
        _child = child = subprocess.Popen(
            [*_CHILD, *precisions],
            env={**environ, **own, **({VARIABLE: limit} if limit else {})}, cwd="/",
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        status = child.wait(max(0.0, deadline - time.monotonic()))
        if _child is not child:
            raise WorldError("AMX was being tried when this process was told to end")  # end_child() has killed it
    except (OSError, subprocess.TimeoutExpired):
        return None
    finally:
        end_child()
    return False if status in _FAULTS else True if status == 0 else None


def end_child() -> None:
    """Kill the child process that tries AMX, if there is one; called by a process that must end."""
    global _child
    child, _child = _child, None
    if child is not None and child.poll() is None:
        child.kill()
        child.wait()


def _compute(precisions: Iterable[str]) -> None:
    """Run the operations for which oneDNN has AMX kernels, in half precision, forward and backward."""
    import resource

    import torch
    from torch.nn import functional

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is expected; write no core file
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
