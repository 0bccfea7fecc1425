"""One GPU for each worker, as the only one that it sees: the script's ``cuda`` and ``cuda:0`` are then its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rueda.world.job_slot import job_slot

VARIABLE = "CUDA_VISIBLE_DEVICES"


def one_gpu(environ: Mapping[str, str], local_rank: int, num_gpus: int) -> dict[str, str]:
    """Return the environment variable that makes only this worker's GPU visible to it; empty if there is no GPU.

    Args:
        environ: the environment, in which the GPUs that may be used can be listed already.
        local_rank: the rank of the worker on this machine.
        num_gpus: the number of GPUs of this machine.

    >>> one_gpu({}, 1, 4), one_gpu({"CUDA_VISIBLE_DEVICES": "6,7"}, 1, 8), one_gpu({}, 1, 0)
    ({'CUDA_VISIBLE_DEVICES': '1'}, {'CUDA_VISIBLE_DEVICES': '7'}, {})
    """
    listed = environ.get(VARIABLE)
    visible = [str(index) for index in range(num_gpus)] if listed is None else [one for one in listed.split(",") if one]
    if num_gpus == 0 or not visible or visible[0] == "-1":
        return {}
    return {VARIABLE: visible[(local_rank + job_slot(environ)) % len(visible)]}


def num_gpus() -> int:
    """Return the number of NVIDIA GPUs of this machine, as their device files show it."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))
