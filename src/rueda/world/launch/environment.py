"""The environment variables of the workers.

Workers on the driver's own host inherit its whole environment. Other hosts get the variables that decide how a program
runs, selected by name; ``-x NAME`` adds to them. Values are sent over ssh's standard input, never on a command line.
A file for Slurm or Kubernetes holds no value of ``-x NAME``, which may be a password, but a reference to it.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rueda.errors import LaunchError
from rueda.world.cores import usable_cores, waiting
from rueda.world.elastic.membership import PREFIX as ELASTIC_PREFIX
from rueda.world.launch.hosts import Host

_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_NAMES = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "LANG", "LC_ALL")
_PREFIXES = (
    *("RUEDA_", "NCCL_", "GLOO_", "TORCH_", "CUDA_", "MALLOC_", "THP_"),
    *("PYTORCH_", "TORCHINDUCTOR_", "HIP_", "ROCR_", "UCX_", "FI_"),
    *("OMP_", "GOMP_", "MKL_", "KMP_", "ONEDNN_", "DNNL_"),
)


@dataclass(frozen=True, kw_only=True)
class EnvironmentAdditions:
    """What a library adds to the environment of the workers that use it.

    Args:
        prefixes: variables whose names begin with one of these are forwarded to other hosts, too.
        packages: packages whose folders are appended to ``PYTHONPATH``, each as it is installed on the worker's host.
        per_worker: computes the variables of one worker from the hosts, the index of its host, its local rank, and its
            rank. The driver calls it and sends the result to other hosts.
    """

    prefixes: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    per_worker: Callable[[Sequence[Host], int, int, int], Mapping[str, str]] = lambda hosts, node, local_rank, rank: {}

    def of_host(self, hosts: Sequence[Host], node: int) -> list[dict[str, str]]:
        """Return the variables of each worker on the host with index ``node``, by local rank."""
        first = sum(host.slots for host in hosts[:node])
        return [
            dict(self.per_worker(hosts, node, local_rank, first + local_rank))
            for local_rank in range(hosts[node].slots)
        ]


def forwarded(environ: Mapping[str, str], prefixes: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that are forwarded to another host; ``prefixes`` adds to the usual ones.

    >>> forwarded({"NCCL_DEBUG": "INFO", "PYTHONPATH": "lib", "HOME": "/home/ada", "SECRET": "x"})
    {'NCCL_DEBUG': 'INFO', 'PYTHONPATH': 'lib'}
    """
    known = (*_PREFIXES, *prefixes)
    return {name: value for name, value in outside_elastic(environ).items() if name in _NAMES or name.startswith(known)}


def outside_elastic(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those of an elastic job, of which a job that one of its workers starts is no part.

    >>> outside_elastic({"RUEDA_ELASTIC_MEMBER": "3", "HOME": "/home/ada"})
    {'HOME': '/home/ada'}
    """
    return {name: value for name, value in environ.items() if not name.startswith(ELASTIC_PREFIX)}


def is_name(text: str) -> bool:
    """Return whether a shell accepts a text as the name of a variable."""
    return _NAME.fullmatch(text) is not None


def requested(entries: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Return the values of ``-x NAME=VALUE``, and the names of ``-x NAME``, whose values are taken from here.

    >>> requested(["A=1=2", "HOME"])
    ({'A': '1=2'}, ['HOME'])
    >>> requested(["A;touch x;B=1"])
    Traceback (most recent call last):
    rueda.errors.LaunchError: -x: expected NAME or NAME=VALUE, ... got 'A;touch x;B=1'; correct the name
    """
    chosen: dict[str, str | None] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not is_name(name) or "\0" in value:
            raise LaunchError(
                "-x",
                expected="NAME or NAME=VALUE, with a NAME of letters, digits and _",
                got=entry,
                do="correct the name",
            )
        chosen[name] = value if equals else None
    values = {name: value for name, value in chosen.items() if value is not None}
    return values, [name for name in chosen if name not in values]


def referenced(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``-x NAME`` with the values that they have here.

    >>> referenced(["HOME"], {"HOME": "/home/ada"})
    {'HOME': '/home/ada'}
    >>> referenced(["TOKEN"], {})
    Traceback (most recent call last):
    rueda.errors.LaunchError: -x TOKEN: expected a variable that is set here, got None; set it, or write TOKEN=value
    """
    found: dict[str, str] = {}
    for name in names:
        if name not in environ:
            raise LaunchError(
                f"-x {name}", expected="a variable that is set here", got=None, do=f"set it, or write {name}=value"
            )
        found[name] = environ[name]
    return found


def for_workers(environ: Mapping[str, str], workers: int) -> dict[str, str]:
    """Return what each worker of this host gets in addition to the agent's environment; the user's own values win.

    Each worker gets its share of the cores as threads: ``workers`` processes that each start one thread for every core
    would slow each other down.

    >>> own = {"OMP_NUM_THREADS": "7", "GOMP_SPINCOUNT": "0", "PYTHONUNBUFFERED": "1", "RUEDA_MALLOC": "default"}
    >>> for_workers(own, 2)
    {}
    """
    from rueda.world.malloc import environment as malloc

    wanted = {
        "OMP_NUM_THREADS": str(max(1, usable_cores() // workers)),
        "PYTHONUNBUFFERED": "1",  # so that lines appear as soon as they are printed
        **waiting(environ),
        **malloc(environ),
    }
    return {name: value for name, value in wanted.items() if name not in environ}


def python_path(environ: Mapping[str, str], packages: Iterable[str]) -> dict[str, str]:
    """Append the folders of some packages to ``PYTHONPATH``, after the user's own entries.

    The folders are looked up on the host where this runs, since another host may have Rueda in another place.

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
