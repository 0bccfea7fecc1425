"""What a worker computes on: its device, the backend that connects it, and how many threads it may use.

More OpenMP threads than free cores make small models up to 40 times slower, because every parallel region waits for
its slowest thread. So each CPU worker gets ``cores // workers on this machine`` threads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from rueda.errors import WorldError
from rueda.world.cores import usable_cores
from rueda.world.identity import Identity

# These launchers bind each worker to its own cores; the others leave all cores to all workers.
_BINDING_LAUNCHERS = ("Open MPI", "Hydra", "Slurm")


def choose_device(identity: Identity, wanted: str | None = None) -> torch.device:
    """Pin the device: ``cuda:local_rank``, else MPS for a single worker, else the CPU.

    ``wanted`` (or ``RUEDA_DEVICE``) overrides the choice: ``cpu``, ``cuda``, ``mps``.
    """
    kind = wanted or os.environ.get("RUEDA_DEVICE")
    if kind is None:
        if torch.cuda.is_available():
            kind = "cuda"
        elif identity.size == 1 and torch.backends.mps.is_available():
            kind = "mps"
        else:
            kind = "cpu"
    if kind == "cuda":
        num_devices = torch.cuda.device_count()
        if identity.local_rank >= num_devices:
            raise WorldError(
                f"local rank {identity.local_rank} expected a GPU of its own, but this machine shows {num_devices}; "
                f"start at most {num_devices} workers here, or set RUEDA_DEVICE=cpu"
            )
        torch.cuda.set_device(identity.local_rank)
        return torch.device("cuda", identity.local_rank)
    if kind not in ("cpu", "mps"):
        raise WorldError(f"RUEDA_DEVICE: expected cpu, cuda or mps, got {kind!r}; correct or unset it")
    return torch.device(kind)


def choose_backend(device: torch.device) -> str:
    """Give the torch.distributed backend: NCCL between GPUs with Gloo for their hosts, else Gloo."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def float64_device(device: torch.device) -> torch.device:
    """Give where a worker's float64 numbers are kept: on its GPU if that is CUDA, else on the host (MPS has none)."""
    return device if device.type == "cuda" else torch.device("cpu")


def choose_threads(identity: Identity, environ: Mapping[str, str] = os.environ) -> int:
    """Count the CPU threads of one worker: cores / workers on this machine, at least 1.

    ``OMP_NUM_THREADS``, where somebody set it, wins.
    """
    if environ.get("OMP_NUM_THREADS", "").isdigit():
        return max(1, int(environ["OMP_NUM_THREADS"]))
    mine = usable_cores()
    if identity.launcher in _BINDING_LAUNCHERS:
        return max(1, min(mine, (os.cpu_count() or 1) // identity.local_size))
    return max(1, mine // identity.local_size)
