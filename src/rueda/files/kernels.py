"""Kernels in C that are compiled when they are first needed, for the processor of this machine, in less than a second.

A compiled file is kept in the cache folder (:func:`rueda.files.cache.cache_folder`) under a name that is made of the
source, the compiler, its options and the processor, so that machines that share a home do not use each other's. Every
caller has a slower way for machines without a compiler; ``RUEDA_KERNELS=off`` asks for that one.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

VARIABLE = "RUEDA_KERNELS"
_COMPILE_SECONDS = 60.0


def are_wanted() -> bool:
    """Return whether kernels may be compiled and used."""
    return os.environ.get(VARIABLE) != "off"


def compiler() -> str:
    """Return the name of the C compiler: ``CC``, or else ``cc``."""
    return os.environ.get("CC", "cc")


def load(source: Path, name: str, functions: Sequence[str], options: Sequence[str], compiler: str) -> Any | None:
    """Load a kernel, and compile it before if it is not in the cache folder; None if either fails.

    Args:
        source: the file in C.
        name: the beginning of the name of the compiled file.
        functions: the functions that it must have; each returns an int.
        options: of the compiler, besides those that make a shared library for this processor.
        compiler: its name.
    """
    from rueda.files.cache import cache_folder

    program = shutil.which(compiler)
    if program is None or not sys.platform.startswith("linux"):
        return None
    options = ["-O3", "-march=native", "-fPIC", *options]
    try:
        file = cache_folder() / "kernels" / f"{name}-{_fingerprint(source, program, options)}.so"
        if file.exists():
            with contextlib.suppress(OSError, AttributeError):  # damaged: it is compiled again
                return _open(file, functions)
        _compile(source, program, options, file)
        return _open(file, functions)
    except (OSError, subprocess.SubprocessError, AttributeError):  # a folder that cannot be written, no headers
        return None


def _open(file: Path, functions: Sequence[str]) -> Any:
    loaded = ctypes.CDLL(str(file))
    for name in functions:
        getattr(loaded, name).restype = ctypes.c_int
    return loaded


def _compile(source: Path, program: str, options: Sequence[str], file: Path) -> None:
    """Compile beside the file and rename, so that processes that do it at once never see half of it.

    The library is not linked with OpenMP's: a second one in the process would start threads of its own.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        unlinked, linked = Path(folder, "kernel.o"), Path(folder, "kernel.so")
        steps = (
            [program, *options, "-c", str(source), "-o", str(unlinked)],
            [program, "-shared", str(unlinked), "-lm", "-o", str(linked)],
        )
        for step in steps:
            subprocess.run(step, check=True, capture_output=True, timeout=_COMPILE_SECONDS)
        os.replace(linked, file)


def _fingerprint(source: Path, program: str, options: Sequence[str]) -> str:
    """Return what a compiled file depends on, as a short name."""
    version = subprocess.run([program, "--version"], check=True, capture_output=True, timeout=_COMPILE_SECONDS).stdout
    cpu = Path("/proc/cpuinfo").read_text()
    lines = {line for line in cpu.splitlines() if line.startswith(("model name", "flags", "Features", "CPU part"))}
    parts = [source.read_bytes(), version, *(text.encode() for text in (*options, *sorted(lines)))]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
