"""The basic functions of Horovod: init, shutdown, ranks and sizes, what is built in, the timeline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from rueda.hvd.common import process_sets as sets
from rueda.hvd.common.process_sets import ProcessSet
from rueda.hvd.core import lifecycle

__all__ = [
    "ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built", "gloo_built", "gloo_enabled", "init",
    "is_homogeneous", "is_initialized", "local_rank", "local_size", "mpi_built", "mpi_enabled",
    "mpi_threads_supported", "nccl_built", "rank", "rocm_built", "shutdown", "size", "start_timeline", "stop_timeline",
]  # fmt: skip


def init(comm: Any = None, process_sets: Iterable[ProcessSet] | str | None = None) -> None:
    """Connect this worker to the others; do nothing if it is connected already.

    It works under ``rueda run``, torchrun, mpirun and Slurm, and for a single process. It can be called again after
    :func:`shutdown`, any number of times in one process.

    Args:
        comm: None; or all ranks, as a list or an mpi4py communicator. For some of the ranks use process sets.
        process_sets: process sets to register, the same on all ranks (see :class:`ProcessSet`). ``"dynamic"`` is
            accepted and has no effect, since process sets can always be added later.
    """
    if lifecycle.running() is not None:
        return
    engine = lifecycle.start()
    wanted = _size_of(comm)
    if wanted is not None and wanted != engine.size:
        lifecycle.stop()
        raise ValueError(
            f"comm: expected all {engine.size} ranks, got {wanted}; initialise with all and use hvd.add_process_set"
        )
    if process_sets is not None and process_sets != "dynamic":
        for process_set in process_sets:
            sets.add_process_set(process_set)  # type: ignore[arg-type]


def shutdown() -> None:
    """Disconnect this worker, at any time; collectives of other ranks that need it raise an error there."""
    sets.forget()
    lifecycle.stop()


def reform(*, failed: bool) -> None:
    """Leave the world of an elastic job, and enter the next one with those workers that are left or have come.

    Args:
        failed: whether a collective failed; False if hosts have changed, which all ranks have agreed on.
    """
    sets.forget()
    lifecycle.reform(failed=failed)


def is_initialized() -> bool:
    """Return whether this worker is connected: after :func:`init`, until :func:`shutdown`."""
    return lifecycle.running() is not None


def rank() -> int:
    """Return the rank of this worker."""
    return lifecycle.engine().rank


def size() -> int:
    """Return the number of workers."""
    return lifecycle.engine().size


def local_rank() -> int:
    """Return the rank of this worker on its own machine."""
    return lifecycle.engine().local_rank


def local_size() -> int:
    """Return the number of workers on this machine."""
    return lifecycle.engine().local_size


def cross_rank() -> int:
    """Return the index of this machine among those that have a worker with this local rank."""
    return _peers().index(rank())


def cross_size() -> int:
    """Return the number of machines that have a worker with this local rank."""
    return len(_peers())


def is_homogeneous() -> bool:
    """Return whether every machine has the same number of workers."""
    return len({local_size for _, local_size in lifecycle.engine().placements}) == 1


def _peers() -> list[int]:
    """Return the ranks, one on each machine, that have the same local rank as this worker."""
    mine = local_rank()
    return [rank for rank, (local, _) in enumerate(lifecycle.engine().placements) if local == mine]


def _size_of(comm: Any) -> int | None:
    if hasattr(comm, "Get_size"):
        return int(comm.Get_size())
    return None if comm is None else len(list(comm)) or None


# What is built in: MPI may start the workers, but torch.distributed sends the tensors.


def mpi_threads_supported() -> bool:
    """Return whether several threads may call MPI: False, since MPI does not communicate here."""
    return False


def mpi_enabled() -> bool:
    """Return whether MPI communicates tensors: always False."""
    return False


def mpi_built() -> bool:
    """Return whether MPI could communicate tensors: always False."""
    return False


def gloo_enabled() -> bool:
    """Return whether Gloo communicates CPU tensors."""
    return gloo_built()


def gloo_built() -> bool:
    """Return whether torch was built with Gloo."""
    return dist.is_available() and dist.is_gloo_available()


def nccl_built() -> int:
    """Return the version of NCCL as Horovod does (21803 for 2.18.3), or 0 if there is no NCCL or no GPU.

    >>> isinstance(nccl_built(), int)
    True
    """
    if not (dist.is_available() and dist.is_nccl_available() and torch.cuda.is_available()):
        return 0
    major, minor, patch, *_ = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return int(major * 10000 + minor * 100 + patch)


def ddl_built() -> int:
    """Return whether IBM's DDL is available: always 0."""
    return 0


def ccl_built() -> int:
    """Return whether oneCCL is used: always 0."""
    return 0


def cuda_built() -> bool:
    """Return whether torch was built with CUDA."""
    return torch.version.cuda is not None


def rocm_built() -> bool:
    """Return whether torch was built with ROCm."""
    return torch.version.hip is not None


# The timeline.


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Start to record negotiation and execution on rank 0, in Chrome's trace format.

    ``chrome://tracing`` and Perfetto show the file.

    Args:
        file_path: the file; it is valid JSON after :func:`stop_timeline`, but the viewers can read it before that.
        mark_cycles: also mark every cycle of the engine.
    """
    engine = lifecycle.engine()
    if engine.rank == 0:
        engine.timeline.start(file_path, mark_cycles)


def stop_timeline() -> None:
    """Finish the file of :func:`start_timeline`."""
    lifecycle.engine().timeline.stop()
