"""The rank and size of a worker, read from the variables that its launcher sets.

=============  =====================  =========================  ===========================  ======================
launcher       rank                   size                       local rank, local size       rendezvous
=============  =====================  =========================  ===========================  ======================
``rueda run``  ``RANK``               ``WORLD_SIZE``             ``LOCAL_RANK``,              ``MASTER_ADDR``,
                                                                 ``LOCAL_WORLD_SIZE``         ``MASTER_PORT``
torchrun       the same               the same                   the same                     the same
Open MPI       ``OMPI_COMM_WORLD_*``  ``OMPI_COMM_WORLD_*``      ``OMPI_COMM_WORLD_LOCAL_*``  over MPI itself
MPICH          ``PMI_RANK``           ``PMI_SIZE``               ``MPI_LOCALRANKID``,         over MPI itself
                                                                 ``MPI_LOCALNRANKS``
Intel MPI      the same               the same                   the same                     over MPI itself
Slurm (srun)   ``SLURM_PROCID``       ``SLURM_STEP_NUM_TASKS``,  ``SLURM_LOCALID``,           first host of the node
                                      ``SLURM_NTASKS``           ``SLURM_TASKS_PER_NODE``     list, port from job id
(none)         0                      1                          0, 1                         none
=============  =====================  =========================  ===========================  ======================

The variables are looked for in this order, so mpirun inside a Slurm job counts as mpirun, and torchrun inside either
of them counts as torchrun. ``MASTER_ADDR`` and ``MASTER_PORT`` take precedence over the rendezvous of any launcher.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rueda.errors import WorldError


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The rank of a worker and the number of workers, as its launcher set them.

    Rank 0 listens at ``address`` and ``port``; None means that the launcher did not set them.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: str = "nobody"
    address: str | None = None
    port: int | None = None

    def __post_init__(self) -> None:
        for rank, size, what in (
            (self.rank, self.size, "rank"),
            (self.local_rank, self.local_size, "local rank"),
        ):
            if not 0 <= rank < size:
                raise WorldError(
                    f"the {what} that {self.launcher} gave",
                    expected=f"a number from 0 to {size - 1} among {size} workers",
                    got=rank,
                    do="start every worker with the same launcher and the same number of workers",
                )


class _LauncherVariables(NamedTuple):
    """The names of a launcher's variables; if one of ``signs`` is set, this launcher started the process."""

    launcher: str
    signs: tuple[str, ...]
    rank: str
    size: tuple[str, ...]
    local_rank: str
    local_size: str | None


_MPI = "OMPI_COMM_WORLD_"
_LAUNCHERS = (
    _LauncherVariables("torchrun", ("RANK", "WORLD_SIZE"), "RANK", ("WORLD_SIZE",), "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    _LauncherVariables("Open MPI", (_MPI + "RANK", _MPI + "SIZE"), _MPI + "RANK", (_MPI + "SIZE",),
           _MPI + "LOCAL_RANK", _MPI + "LOCAL_SIZE"),
    # srun --mpi=pmi2 sets PMI_RANK too; only Hydra sets MPI_LOCALRANKID.
    _LauncherVariables("Hydra", ("MPI_LOCALRANKID",), "PMI_RANK", ("PMI_SIZE",), "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    # A batch script itself has SLURM_PROCID=0 but no step: it is a single process without a launcher.
    _LauncherVariables("Slurm", ("SLURM_STEP_ID",), "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
           "SLURM_LOCALID", None),
)  # fmt: skip


def identify(environ: Mapping[str, str]) -> Identity:
    """Return the identity that the launcher's variables describe.

    >>> identify({})
    Identity(rank=0, size=1, local_rank=0, local_size=1, launcher='nobody', address=None, port=None)
    >>> identify({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
    ...           "MASTER_ADDR": "server1", "MASTER_PORT": "29500"}).local_rank
    1
    >>> identify({"RANK": "3"})
    Traceback (most recent call last):
    rueda.errors.WorldError: WORLD_SIZE: expected a positive whole number, since RANK is set, got None; ...
    """
    for variables in _LAUNCHERS:
        if any(name in environ for name in variables.signs):
            return _read(variables, environ)
    return Identity()


def _read(variables: _LauncherVariables, environ: Mapping[str, str]) -> Identity:
    known = next(name for name in variables.signs if name in environ)
    size_name = next((name for name in variables.size if name in environ), variables.size[0])
    rank = _number(environ, variables.rank, known, lowest=0)
    size = _number(environ, size_name, known, lowest=1)
    if rank >= size:
        raise WorldError(
            variables.rank,
            expected=f"a rank below {size_name}={size}",
            got=rank,
            do=f"give the workers the ranks 0 to {size - 1}",
        )
    node = _local_rank_and_size(variables, environ, rank, size)
    address, port = _rendezvous(variables, environ, size)
    return Identity(
        rank=rank,
        size=size,
        launcher=variables.launcher,
        address=address,
        port=port,
        local_rank=node[0],
        local_size=node[1],
    )


def _local_rank_and_size(
    variables: _LauncherVariables, environ: Mapping[str, str], rank: int, size: int
) -> tuple[int, int]:
    if variables.local_rank not in environ:
        if size == 1:
            return 0, 1
        raise WorldError(
            variables.local_rank,
            expected="this worker's number on its own machine, which chooses its device",
            got=None,
            do="set it (0 for the first worker of each machine), or start with `rueda run`",
        )
    local_rank = _number(environ, variables.local_rank, variables.local_rank, lowest=0)
    if variables.local_size is not None and variables.local_size in environ:
        local_size = _number(environ, variables.local_size, variables.local_size, lowest=1)
    elif variables.launcher == "Slurm" and "SLURM_TASKS_PER_NODE" in environ:
        counts, node = slurm_nodes(environ)
        local_size = counts[node]
    else:
        # Old launchers do not set it. There are at least local_rank + 1 workers on this machine; if the rank equals the
        # local rank, assume that all workers are on it.
        local_size = max(local_rank + 1, size if rank == local_rank else 1)
    return local_rank, local_size


def _rendezvous(variables: _LauncherVariables, environ: Mapping[str, str], size: int) -> tuple[str | None, int | None]:
    if size == 1:
        return None, None
    address = environ.get("MASTER_ADDR")
    port = _number(environ, "MASTER_PORT", "MASTER_PORT", lowest=1) if "MASTER_PORT" in environ else None
    if address is not None and port is not None:
        return address, port
    if variables.launcher == "torchrun":
        missing = "MASTER_PORT" if port is None else "MASTER_ADDR"
        raise WorldError(
            missing,
            expected="the address and port at which rank 0 waits, since WORLD_SIZE > 1",
            got=environ.get(missing),
            do=f"set {missing}, or start with `rueda run -np {size}`",
        )
    if variables.launcher == "Slurm":
        nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST")
        if nodes is None:
            raise WorldError("SLURM_JOB_NODELIST", expected="the nodes of the job", got=None, do="start with srun")
        job = int(environ.get("SLURM_JOB_ID", 0)) * 17 + int(environ["SLURM_STEP_ID"])
        # Below 32768, where Linux's ephemeral ports begin, and different for jobs on the same node.
        return address or first_host(nodes), port or 20000 + job % 12000
    return address, port


def _number(environ: Mapping[str, str], name: str, because: str, *, lowest: int) -> int:
    text = environ.get(name)
    try:
        value = int(text) if text is not None else lowest - 1
    except ValueError:
        value = lowest - 1
    if value < lowest:
        kind = "a positive whole number" if lowest else "a whole number from 0"
        reason = f", since {because} is set" if because != name else ""
        raise WorldError(
            name, expected=kind + reason, got=text, do=f"set {name}, or unset {because} to run on one worker"
        )
    return value


def first_host(nodelist: str) -> str:
    """Return the first host of a Slurm node list.

    >>> first_host("node07"), first_host("gpu[003-006,009],login1"), first_host("r[1-2]n[08-09]-ib")
    ('node07', 'gpu003', 'r1n08-ib')
    """
    # Commas inside brackets separate numbers, not hosts.
    first = re.split(r",(?![^\[]*\])", nodelist.strip())[0]
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first)


def slurm_nodes(environ: Mapping[str, str], default: str = "") -> tuple[list[int], int]:
    """Return the number of Slurm's tasks on each node of the step, and the number of this node.

    >>> slurm_nodes({"SLURM_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "2"})
    ([4, 4, 3], 2)

    Args:
        environ: the environment of a task.
        default: the counts if Slurm states none.
    """
    text = environ.get("SLURM_STEP_TASKS_PER_NODE", environ.get("SLURM_TASKS_PER_NODE", ""))
    counts = tasks_per_node(text or default)
    return counts, min(int(environ.get("SLURM_NODEID", 0)), len(counts) - 1)


def tasks_per_node(text: str) -> list[int]:
    """Expand Slurm's task counts per node.

    >>> tasks_per_node("4(x2),3")
    [4, 4, 3]
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise WorldError("SLURM_TASKS_PER_NODE", expected="counts such as 4(x2),3", got=text, do="start with srun")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
