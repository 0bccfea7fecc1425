"""The world as Horovod names it: init, shutdown, ranks and sizes, what is built in, the timeline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from rueda.hvd.common import process_sets as sets
from rueda.hvd.common.process_sets import ProcessSet
from rueda.hvd.core import life

__all__ = [
    "ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built", "gloo_built", "gloo_enabled", "init",
    "is_homogeneous", "is_initialized", "local_rank", "local_size", "mpi_built", "mpi_enabled",
    "mpi_threads_supported", "nccl_built", "rank", "rocm_built", "shutdown", "size", "start_timeline", "stop_timeline",
]  # fmt: skip


def init(comm: Any = None, process_sets: Iterable[ProcessSet] | str | None = None) -> None:
    """Meet the other workers; called again before :func:`shutdown`, it does nothing.

    Works under ``rueda run``, torchrun, mpirun and Slurm, or alone. After :func:`shutdown` it can be called again, any
    number of times in one process.

    Args:
        comm: None; or all ranks, as a list or an mpi4py communicator. For some of the ranks use process sets.
        process_sets: sets to register at once, the same on all ranks (see :class:`ProcessSet`); ``"dynamic"`` is
            accepted, since sets can always be added later.
    """
    if life.running() is not None:
        return
    engine = life.start()
    wanted = _size_of(comm)
    if wanted is not None and wanted != engine.size:
        life.stop()
        raise ValueError(
            f"comm: expected all {engine.size} ranks, got {wanted}; initialise with all and use hvd.add_process_set"
        )
    if process_sets is not None and process_sets != "dynamic":  # sets can be added at any time here
        for process_set in process_sets:
            sets.add_process_set(process_set)  # type: ignore[arg-type]


def shutdown() -> None:
    """Leave: collectives that others still wait for raise there. Safe to call at any time, any number of times."""
    sets.forget()
    life.stop()


def is_initialized() -> bool:
    """Say whether :func:`init` was called, and :func:`shutdown` not yet."""
    return life.running() is not None


def rank() -> int:
    """Give this worker's number among all."""
    return life.engine().rank


def size() -> int:
    """Count the workers."""
    return life.engine().size


def local_rank() -> int:
    """Give this worker's number on its own machine."""
    return int(life.engine().about["local_rank"])


def local_size() -> int:
    """Count the workers on this machine."""
    return int(life.engine().about["local_size"])


def cross_rank() -> int:
    """Give the number of this machine among those that have a worker with this local rank."""
    engine = life.engine()
    return _peers().index(engine.rank)


def cross_size() -> int:
    """Count the machines that have a worker with this local rank."""
    return len(_peers())


def is_homogeneous() -> bool:
    """Say whether every machine has the same number of workers."""
    return len({about["local_size"] for about in life.engine().roster}) == 1


def _peers() -> list[int]:
    mine = local_rank()
    return [rank for rank, about in enumerate(life.engine().roster) if about["local_rank"] == mine]


def _size_of(comm: Any) -> int | None:
    if comm is None:
        return None
    if hasattr(comm, "Get_size"):
        return int(comm.Get_size())
    return len(list(comm)) or None


# What is built in. MPI may launch the workers; torch.distributed carries the tensors.


def mpi_threads_supported() -> bool:
    """Say whether MPI calls may come from several threads: False, since no tensor travels over MPI."""
    return False


def mpi_enabled() -> bool:
    """Say whether tensors travel over MPI: never."""
    return False


def mpi_built() -> bool:
    """Say whether tensors could travel over MPI: no."""
    return False


def gloo_enabled() -> bool:
    """Say whether Gloo carries CPU tensors."""
    return gloo_built()


def gloo_built() -> bool:
    """Say whether torch has Gloo."""
    return dist.is_available() and dist.is_gloo_available()


def nccl_built() -> int:
    """Give NCCL's version as Horovod does (2.18.3: 21803), or 0 without it.

    >>> isinstance(nccl_built(), int)
    True
    """
    if not (dist.is_available() and dist.is_nccl_available() and torch.cuda.is_available()):
        return 0
    version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    major, minor, patch = (
        version if isinstance(version, tuple) else (version // 1000, version // 100 % 10, version % 100)
    )
    return int(major * 10000 + minor * 100 + patch)


def ddl_built() -> int:
    """Say whether IBM's DDL is there: never."""
    return 0


def ccl_built() -> int:
    """Say whether oneCCL is used: never."""
    return 0


def cuda_built() -> bool:
    """Say whether torch has CUDA."""
    return torch.version.cuda is not None


def rocm_built() -> bool:
    """Say whether torch has ROCm."""
    return torch.version.hip is not None


# The timeline.


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Write what happens from now on to a file in Chrome's trace format (on rank 0): negotiation and execution.

    Open it in ``chrome://tracing`` or Perfetto.

    Args:
        file_path: the file; it is valid JSON after :func:`stop_timeline`, and readable by the viewers before.
        mark_cycles: mark every cycle of the engine, too.
    """
    engine = life.engine()
    if engine.rank == 0:
        engine.timeline.start(file_path, mark_cycles)


def stop_timeline() -> None:
    """Finish the file of :func:`start_timeline`."""
    life.engine().timeline.stop()
