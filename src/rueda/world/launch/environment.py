"""Which variables the workers see.

Workers on the driver's own host inherit its whole environment. Other hosts get, by name, what decides how a program
runs; ``-x NAME`` adds to it. Values travel over ssh's standard input and never stand on a command line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rueda.errors import LaunchError, explain
from rueda.world.cores import usable_cores, waiting

_NAMES = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "LANG", "LC_ALL")
_PREFIXES = ("RUEDA_", "HOROVOD_", "NCCL_", "GLOO_", "TORCH_", "OMP_", "GOMP_", "MKL_", "KMP_", "CUDA_", "MALLOC_")


def forwarded(environ: Mapping[str, str]) -> dict[str, str]:
    """Select what another host must know.

    >>> forwarded({"NCCL_DEBUG": "INFO", "PYTHONPATH": "lib", "HOME": "/home/ada", "SECRET": "x"})
    {'NCCL_DEBUG': 'INFO', 'PYTHONPATH': 'lib'}
    """
    return {name: value for name, value in environ.items() if name in _NAMES or name.startswith(_PREFIXES)}


def requested(entries: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Read ``-x NAME`` (as it is here) and ``-x NAME=VALUE``.

    >>> requested(["A=1=2", "HOME"], {"HOME": "/home/ada"})
    {'A': '1=2', 'HOME': '/home/ada'}
    >>> requested(["TOKEN"], {})
    Traceback (most recent call last):
    rueda.errors.LaunchError: -x TOKEN: expected a variable that is set here, got None; set it, or write TOKEN=value
    """
    chosen: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not name or "\0" in entry:
            raise LaunchError(explain("-x", expected="NAME or NAME=VALUE", got=entry, do="name a variable"))
        if not equals:
            if name not in environ:
                raise LaunchError(
                    explain(f"-x {name}", expected="a variable that is set here", got=None,
                            do=f"set it, or write {name}=value")
                )  # fmt: skip
            value = environ[name]
        chosen[name] = value
    return chosen


def for_workers(environ: Mapping[str, str], workers: int) -> dict[str, str]:
    """Give what each worker of this host gets beside the environment of the agent; the user's own values win.

    ``workers`` processes that each start a thread a core stand in each other's way: a core is one worker's.

    >>> own = {"OMP_NUM_THREADS": "7", "GOMP_SPINCOUNT": "0", "PYTHONUNBUFFERED": "1", "RUEDA_MALLOC": "default"}
    >>> for_workers({**own, "RUEDA_HOROVOD": "0"}, 2)
    {}
    """
    from rueda.world.malloc import environment as malloc

    wanted = {
        "OMP_NUM_THREADS": str(max(1, usable_cores() // workers)),
        "PYTHONUNBUFFERED": "1",  # lines appear when they are printed
        **waiting(environ),
        **malloc(environ),
    }
    return {**{name: value for name, value in wanted.items() if name not in environ}, **python_path(environ)}


def python_path(environ: Mapping[str, str]) -> dict[str, str]:
    """Add the folder in which ``import horovod`` finds Rueda, behind what the user has on ``PYTHONPATH``.

    The folder holds that one module, which steps aside where a genuine Horovod is installed; ``RUEDA_HOROVOD=0``
    keeps it away. It is this host's own folder: Rueda may lie elsewhere on the others.

    >>> python_path({"PYTHONPATH": "lib"})["PYTHONPATH"].split(os.pathsep)
    ['lib', '.../rueda/hvd/shim']
    >>> python_path({"RUEDA_HOROVOD": "0"})
    {}
    """
    if environ.get("RUEDA_HOROVOD") == "0":
        return {}
    folder = str(Path(__file__).parents[2] / "hvd" / "shim")
    given = environ.get("PYTHONPATH")
    entries = [entry for entry in given.split(os.pathsep) if entry != folder] if given else []
    return {"PYTHONPATH": os.pathsep.join([*entries, folder])}


def for_one_worker(slots: Sequence[int], node: int, host: str, local_rank: int) -> dict[str, str]:
    """Tell a worker its place in Horovod's words too, which scripts read before they call ``init``.

    ``CROSS``: among the workers that have the same number on their own host.

    Args:
        slots: the workers on each host, in rank order.
        node: the number of this host.
        host: its name, as the user wrote it.
        local_rank: the number of the worker on this host.

    >>> place = for_one_worker([2, 1, 2], node=2, host="server3", local_rank=1)
    >>> [place[f"HOROVOD_{name}"] for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")]
    ['4', '5', '1', '2', '1', '2']
    """
    return {
        "HOROVOD_RANK": str(sum(slots[:node]) + local_rank),
        "HOROVOD_SIZE": str(sum(slots)),
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(slots[node]),
        "HOROVOD_CROSS_RANK": str(sum(count > local_rank for count in slots[:node])),
        "HOROVOD_CROSS_SIZE": str(sum(count > local_rank for count in slots)),
        "HOROVOD_HOSTNAME": host,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
