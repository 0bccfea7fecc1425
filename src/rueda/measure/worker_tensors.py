"""What a worker of any parallel form holds: the bytes of its own tensors.

A parameter that sharding or tensor parallelism divides is a ``DTensor``, of which the worker has the local part; one
that a pipeline keeps elsewhere is on the device ``meta`` and is not trained here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from rueda.data.nest import tensors
from rueda.records.parallelism import WorkerMemory
from rueda.train.counting import SavedTensors
from rueda.train.training import Training


def local_bytes(of: Iterable[Tensor]) -> int:
    """Return the bytes of the local parts of some tensors.

    >>> import torch
    >>> local_bytes([torch.ones(3), torch.ones(2, 2, dtype=torch.float64)])
    44
    """
    parts = [one.to_local() if hasattr(one, "to_local") else one for one in of]
    return sum(one.numel() * one.element_size() for one in parts)


def state_of_worker(training: Training) -> WorkerMemory:
    """Count the parameters, gradients and optimizer state of this worker; gradients are as large as parameters.

    Scalars of the optimizer, such as Adam's count of steps, are left out: no form divides them.
    """
    trained = local_bytes(one for one in training.model.parameters() if one.requires_grad)
    state = [one for one in tensors(list(training.optimizer.state.values())) if one.dim() > 0]
    return WorkerMemory(parameters=trained, gradients=trained, optimizer=local_bytes(state))


@contextmanager
def activations_of(model: nn.Module) -> Iterator[SavedTensors]:
    """Count what the steps inside the block keep for their backward passes, without parameters and buffers.

    Parameters are left out as each module has them when it begins: sharding has gathered them by then.
    """
    saved = SavedTensors([*model.parameters(), *model.buffers()])

    def leave_out(module: nn.Module, inputs: Any) -> None:
        saved.leave_out(module.parameters(recurse=False))

    handles = [module.register_forward_pre_hook(leave_out) for module in model.modules()]
    try:
        with saved.hooks():
            yield saved
    finally:
        for handle in handles:
            handle.remove()
