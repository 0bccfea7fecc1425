"""Builds ``impostor.cpp`` once per version of torch and of the source, into the user's cache folder."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.metadata
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rueda.files.cache import cache_folder

SOURCE = Path(__file__).with_name("impostor.cpp")
CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"


def skip_without_impostor() -> None:
    """Skip a test, with the reason, where the impostor cannot be built; otherwise build it, if that was not done."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"the impostor device needs {reason}")
    build()


def why_not() -> str | None:
    """Return what the impostor lacks here, or None. It uses torch's C++ classes, which change with each version."""
    pinned = re.search(r"^torch==(\S+)", CONSTRAINTS.read_text(), re.MULTILINE)
    wanted = pinned[1] if pinned else "a pinned torch"
    found = importlib.metadata.version("torch")
    if found.split("+")[0] != wanted:
        return f"torch {wanted}, and this is {found}"
    if shutil.which("g++") is None:
        return "g++"
    return None


@functools.cache
def build() -> Path:
    """Return the library's file; compiling it takes about 8 seconds, once."""
    torch = Path(str(importlib.metadata.distribution("torch").locate_file("torch")))
    identity = importlib.metadata.version("torch").encode() + str(torch).encode() + SOURCE.read_bytes()
    file = cache_folder() / "tests" / f"impostor-{hashlib.sha256(identity).hexdigest()[:16]}.so"
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file.with_suffix(".lock"), "w") as lock:  # the test processes of one run need it at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            part = file.with_suffix(".part")
            includes = [f"-I{torch / 'include'}", f"-I{torch / 'include/torch/csrc/api/include'}"]
            links = [f"-L{torch / 'lib'}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch / 'lib'}"]
            command = [
                "g++",
                "-O0",
                "-shared",
                "-fPIC",
                "-std=c++20",
                "-w",
                *includes,
                str(SOURCE),
                "-o",
                str(part),
                *links,
            ]
            subprocess.run(command, check=True)
            part.rename(file)
    return file
