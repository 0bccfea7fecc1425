"""Which variables the workers see.

Workers on the driver's own host inherit its whole environment. Other hosts get, by name, what decides how a program
runs; ``-x NAME`` adds to it. Values travel over ssh's standard input and never stand on a command line.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rueda.errors import LaunchError
from rueda.world.cores import usable_cores, waiting
from rueda.world.launch.hosts import Host

_NAMES = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "LANG", "LC_ALL")
_PREFIXES = (
    *("RUEDA_", "NCCL_", "GLOO_", "TORCH_", "CUDA_", "MALLOC_"),
    *("OMP_", "GOMP_", "MKL_", "KMP_", "ONEDNN_", "DNNL_"),
)


@dataclass(frozen=True, kw_only=True)
class EnvironmentAdditions:
    """What a library's scripts need in their workers' environment, beside what every worker gets.

    Args:
        prefixes: variables whose names begin so are forwarded to other hosts, too.
        packages: packages whose folders are appended to ``PYTHONPATH``, each as it is installed on the worker's host.
        per_worker: computes the variables of one worker from the hosts, the index of its host, and its local rank. The
            driver calls it; what travels to other hosts is the result.
    """

    prefixes: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    per_worker: Callable[[Sequence[Host], int, int], Mapping[str, str]] | None = None

    def of_host(self, hosts: Sequence[Host], node: int) -> list[dict[str, str]]:
        """Give the variables of each worker on the host of index ``node``, by local rank."""
        if self.per_worker is None:
            return [{} for _ in range(hosts[node].slots)]
        return [dict(self.per_worker(hosts, node, local_rank)) for local_rank in range(hosts[node].slots)]


def forwarded(environ: Mapping[str, str], prefixes: Iterable[str] = ()) -> dict[str, str]:
    """Select what another host must know; ``prefixes`` adds to the usual ones.

    >>> forwarded({"NCCL_DEBUG": "INFO", "PYTHONPATH": "lib", "HOME": "/home/ada", "SECRET": "x"})
    {'NCCL_DEBUG': 'INFO', 'PYTHONPATH': 'lib'}
    """
    known = (*_PREFIXES, *prefixes)
    return {name: value for name, value in environ.items() if name in _NAMES or name.startswith(known)}


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
            raise LaunchError("-x", expected="NAME or NAME=VALUE", got=entry, do="name a variable")
        if not equals:
            if name not in environ:
                raise LaunchError(
                    f"-x {name}", expected="a variable that is set here", got=None, do=f"set it, or write {name}=value"
                )
            value = environ[name]
        chosen[name] = value
    return chosen


def for_workers(environ: Mapping[str, str], workers: int) -> dict[str, str]:
    """Give what each worker of this host gets beside the environment of the agent; the user's own values win.

    ``workers`` processes that each start a thread a core stand in each other's way: a core is one worker's.

    >>> own = {"OMP_NUM_THREADS": "7", "GOMP_SPINCOUNT": "0", "PYTHONUNBUFFERED": "1", "RUEDA_MALLOC": "default"}
    >>> for_workers(own, 2)
    {}
    """
    from rueda.world.malloc import environment as malloc

    wanted = {
        "OMP_NUM_THREADS": str(max(1, usable_cores() // workers)),
        "PYTHONUNBUFFERED": "1",  # lines appear when they are printed
        **waiting(environ),
        **malloc(environ),
    }
    return {name: value for name, value in wanted.items() if name not in environ}


def python_path(environ: Mapping[str, str], packages: Iterable[str]) -> dict[str, str]:
    """Append the folders of some packages to ``PYTHONPATH``, behind what the user has there.

    The folders are looked up where this runs: Rueda may be installed elsewhere on another host.

    >>> python_path({"PYTHONPATH": "lib"}, ["rueda.cli"])["PYTHONPATH"].split(os.pathsep)
    ['lib', '.../rueda/cli']
    >>> python_path({"PYTHONPATH": "lib"}, [])
    {}
    """
    specs = [importlib.util.find_spec(package) for package in packages]
    folders = [folder for spec in specs if spec for folder in spec.submodule_search_locations or ()]
    if not folders:
        return {}
    given = environ.get("PYTHONPATH")
    entries = [entry for entry in given.split(os.pathsep) if entry not in folders] if given else []
    return {"PYTHONPATH": os.pathsep.join([*entries, *folders])}
