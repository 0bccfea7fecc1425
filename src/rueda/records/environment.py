"""The environment of a measurement: machine, versions, commit and command, saved with every result."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from rueda.world.cores import usable_cores

_PACKAGES = ("rueda", "torch", "numpy")
_RESULTS = ("docs/results", "benchmarks/results")
"""the folders of results that are committed together with the code"""


def environment() -> dict[str, Any]:
    """Return a description of this machine and process, without names of hosts, users or folders."""
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "processor": _processor(),
            "cores": os.cpu_count(),
            "usable_cores": usable_cores(),  # less than it shows, under a quota or an affinity
            "memory_bytes": memory_bytes(),
            "gpus": _gpus(),
            "onednn_max_cpu_isa": os.environ.get("ONEDNN_MAX_CPU_ISA"),  # world/instruction_sets.py
        },
        "versions": {
            "python": platform.python_version(),
            **{package: version for package in _PACKAGES if (version := _version(package)) is not None},
        },
        "commit": _commit(),
        "command": " ".join([Path(sys.argv[0]).name.replace("__main__.py", "rueda"), *sys.argv[1:]]),  # python -m rueda
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def memory_bytes() -> int | None:
    """Return the memory of this machine; None if the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _gpus() -> list[str]:
    torch = sys.modules.get("torch")  # only if torch is loaded already: importing it takes seconds
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the commit of the code in the current folder, followed by ``+`` if tracked files have changed since.

    Changes to committed results do not count; otherwise the first of two measurements would make the second one report
    a modified tree.
    """
    commit = _git("rev-parse", "--short=12", "HEAD")
    if commit is None:
        return None
    apart = [f":(top,exclude){folder}" for folder in _RESULTS]
    changes = _git("--no-optional-locks", "status", "--porcelain", "--untracked-files=no", "--", ":(top)", *apart)
    return commit if changes == "" else f"{commit}+"


def _git(*words: str) -> str | None:
    try:
        answer = subprocess.run(["git", *words], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
