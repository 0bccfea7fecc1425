"""The environment of a measurement: machine, versions, commit and command, saved with every result."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from rueda.world.cores import usable_cores

_PACKAGES = ("rueda", "torch", "numpy")
_RESULTS = ("docs/results", "benchmarks/results", "src/rueda/labs/stored/*.json")
"""the results that are committed together with the code"""
_PACKAGE = Path(__file__).resolve().parents[1]


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
        "command": shlex.join([*_program(sys.argv[0]), *sys.argv[1:]]),
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


def _program(name: str) -> list[str]:
    """Return the words that start this program, as one types them at the top of its repository.

    A script is named by its path within Rueda's repository or the current folder, and otherwise by its name alone.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.origin is not None and main.origin == name:  # python -m
        module = main.name.removesuffix(".__main__")
        return ["rueda"] if module == "rueda" else ["python", "-m", module]
    if name == "-c":
        return ["python", "-c"]
    file = Path(os.path.abspath(name))
    if file.suffix != ".py":
        return [file.name]
    if file.is_relative_to(_PACKAGE):  # the caller of this process was started by python -m
        module = ".".join(["rueda", *file.relative_to(_PACKAGE).with_suffix("").parts]).removesuffix(".__main__")
        return ["rueda"] if module == "rueda" else ["python", "-m", module]
    folder = next((folder for folder in (_PACKAGE.parents[1], Path.cwd()) if file.is_relative_to(folder)), file.parent)
    return ["python", file.relative_to(folder).as_posix()]


def _commit() -> str | None:
    """Return the commit of the code, followed by ``+`` if files of it have changed since.

    It is that of Rueda's own repository; of an installed Rueda, whose version is in the record, it is that of the
    current folder. New files count where code is, under ``src``. Changes to committed results do not count: otherwise
    the first of two measurements would make the second one report a modified tree.
    """
    folder = _PACKAGE if _git(_PACKAGE, "ls-files", "--error-unmatch", "__init__.py") is not None else Path.cwd()
    commit = _git(folder, "rev-parse", "--short=12", "HEAD")
    if commit is None:
        return None
    apart = [f":(top,exclude){results}" for results in _RESULTS]
    status = ("--no-optional-locks", "status", "--porcelain")
    changed = _git(folder, *status, "--untracked-files=no", "--", ":(top)", *apart)
    added = _git(folder, *status, "--untracked-files=normal", "--", ":(top)src", *apart)
    return commit if changed == added == "" else f"{commit}+"


def _git(folder: Path, *words: str) -> str | None:
    try:
        answer = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
