"""The device of a worker, its torch.distributed backend, and its number of CPU threads.

More OpenMP threads than free cores make small models up to 40 times slower, because every parallel region waits for
its slowest thread. So each CPU worker gets ``cores // workers on this machine`` threads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from rueda.errors import WorldError
from rueda.world.cores import usable_cores
from rueda.world.elastic.membership import slot
from rueda.world.identity import Identity
from rueda.world.job_slot import job_slot

# These launchers may bind each worker to its own cores; under the others every worker may use all cores.
_BINDING_LAUNCHERS = ("Open MPI", "Hydra", "Slurm")


_GPUS = {"cuda": "nccl", "xpu": "xccl"}
"""kinds of devices of which each worker needs one of its own, and the backend of their tensors"""


def choose_device(identity: Identity, wanted: str | None = None, *, adopted: bool = False) -> torch.device:
    """Choose and set the device: a GPU (CUDA, XPU) if there is one, else MPS for a single worker, else the CPU.

    A worker takes the GPU of its local rank among those that it sees. Under Slurm, and with MIG, each worker may see
    only its own GPU: then every worker takes number 0, which is another one for each (:func:`claim_device` checks it).

    Args:
        identity: the local rank of this worker.
        wanted: ``cpu``, ``cuda``, ``xpu`` or ``mps``; by default ``RUEDA_DEVICE``, or the best that is available.
        adopted: the script has created the process group itself: keep the device that it bound or selected, if any.
    """
    kind = wanted or os.environ.get("RUEDA_DEVICE") or _best_kind(identity)
    if kind not in ("cpu", "mps", *_GPUS):
        raise WorldError(f"RUEDA_DEVICE: expected cpu, cuda, xpu or mps, got {kind!r}; correct or unset it")
    if kind not in _GPUS:
        return torch.device(kind)
    module = torch.get_device_module(kind)
    if module.device_count() == 0:
        raise WorldError(f"RUEDA_DEVICE: expected {kind}, but this machine shows no such device; set RUEDA_DEVICE=cpu")
    index: int = (slot(os.environ, identity.local_rank) + job_slot(os.environ)) % module.device_count()
    if adopted:
        bound = dist.distributed_c10d._get_default_group().bound_device_id
        if bound is not None and bound.type == kind and bound.index is not None:
            index = bound.index
        else:
            index = module.current_device() or index  # 0 is the current device also of a script that selected none
    module.set_device(index)
    return torch.device(kind, index)


def _best_kind(identity: Identity) -> str:
    for kind in _GPUS:
        if torch.get_device_module(kind).is_available():
            return kind
    return "mps" if identity.size == 1 and torch.backends.mps.is_available() else "cpu"


def claim_device(store: Store, identity: Identity, device: torch.device) -> None:
    """Refuse a GPU that another worker uses already: NCCL would fail later, in words that do not tell what to do."""
    if device.type not in _GPUS:
        return
    properties = torch.get_device_module(device.type).get_device_properties(device)
    uuid = getattr(properties, "uuid", None)
    if uuid is None or "MIG" in properties.name:  # the slices of one GPU may show the same number
        return
    owner = store.compare_set(f"gpu/{uuid}", "", str(identity.rank)).decode()
    if owner != str(identity.rank):
        count = torch.get_device_module(device.type).device_count()
        raise WorldError(
            f"ranks {owner} and {identity.rank} have the same GPU ({device}, {properties.name}); start at most {count} "
            "workers here, let the launcher give each its own (srun --gpus-per-task=1), or set RUEDA_DEVICE=cpu"
        )


def choose_backend(device: torch.device, environ: Mapping[str, str] = os.environ) -> str:
    """Return the torch.distributed backend: Gloo for CPU tensors, NCCL for CUDA tensors, XCCL for XPU tensors.

    ``RUEDA_BACKEND`` overrides it with another one, such as ``ucc``, or with one for each kind of tensor, such as
    ``cpu:gloo,cuda:ucc``.
    """
    if wanted := environ.get("RUEDA_BACKEND"):
        known = dist.Backend.backend_list
        for part in wanted.lower().split(","):
            if part.rpartition(":")[2] not in known:
                raise WorldError("RUEDA_BACKEND", expected=f"one of {', '.join(known)}", got=wanted, do="correct it")
        return wanted.lower()
    return f"cpu:gloo,{device.type}:{_GPUS[device.type]}" if device.type in _GPUS else "gloo"


def backend_of(device: torch.device) -> str:
    """Return the name of the backend that carries the tensors of a device."""
    return _GPUS.get(device.type, "gloo")


def has_float64(device: torch.device) -> bool:
    """Return whether a device computes in float64: MPS and some XPU devices do not."""
    if device.type == "xpu":
        return bool(torch.xpu.get_device_properties(device).has_fp64)
    return device.type != "mps"


def float64_device(device: torch.device) -> torch.device:
    """Return the device for float64 tensors: the given one, or the CPU if that one has no float64."""
    return device if has_float64(device) else torch.device("cpu")


def widest_dtype(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on a device without float64, for sums that stay on the device."""
    return torch.float64 if has_float64(device) else torch.float32


def to_float64(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float64, on the CPU if its device has no float64: the conversion must happen there, too."""
    return tensor.to(float64_device(tensor.device)).double()


def is_gpu(device: torch.device) -> bool:
    """Return whether a device has memory and a queue of its own, as CUDA and XPU devices; MPS shares the machine's."""
    return device.type in _GPUS


def wait_for(device: torch.device) -> None:
    """Block until the device has finished all queued work; a CPU has no queue."""
    if device.type == "mps":
        torch.mps.synchronize()
    elif device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def send(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Copy a small CPU tensor to a device without waiting for it: through pinned memory, behind the queued kernels."""
    target = torch.device(device)
    return tensor.pin_memory().to(target, non_blocking=True) if target.type == "cuda" else tensor.to(target)


def choose_threads(identity: Identity, environ: Mapping[str, str] = os.environ) -> int:
    """Return the number of CPU threads of one worker: cores / workers on this machine, at least 1.

    ``OMP_NUM_THREADS`` takes precedence where it is set.
    """
    if environ.get("OMP_NUM_THREADS", "").isdigit():
        return max(1, int(environ["OMP_NUM_THREADS"]))
    mine = usable_cores()
    if identity.launcher in _BINDING_LAUNCHERS:
        return max(1, min(mine, (os.cpu_count() or 1) // identity.local_size))
    return max(1, mine // identity.local_size)
