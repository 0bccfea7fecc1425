"""What a worker of any parallel form holds: the bytes of its own tensors.

A parameter that sharding or tensor parallelism divides is a ``DTensor``, of which the worker has the local part; one
that a pipeline keeps elsewhere is on the device ``meta`` and is not trained here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rueda.data.nest import tensors
from rueda.optim.engine.lanes import local
from rueda.records.parallelism import WorkerMemory
from rueda.train.counting import SavedTensors
from rueda.train.training import Training


def local_bytes(of: Iterable[Tensor]) -> int:
    """Return the bytes of the local parts of some tensors.

    >>> import torch
    >>> local_bytes([torch.ones(3), torch.ones(2, 2, dtype=torch.float64)])
    44
    """
    return sum(local(one).numel() * one.element_size() for one in of)


def state_of_worker(training: Training) -> WorkerMemory:
    """Count the parameters, gradients and optimizer state of this worker; gradients are as large as parameters.

    Scalars of the optimizer, such as Adam's count of steps, are left out: no form divides them.
    """
    trained = local_bytes(one for one in training.model.parameters() if one.requires_grad)
    state = [one for one in tensors(list(training.optimizer.state.values())) if one.dim() > 0]
    return WorkerMemory(parameters=trained, gradients=trained, optimizer=local_bytes(state))


class StepTensors:
    """Counts what a step holds besides the state of the worker: activations, and parameters that sharding gathers.

    Args:
        model: the model that trains.

    ::

        tensors = StepTensors(training.model)
        with tensors.counted():
            training.step()
        tensors.activations.peak_bytes, tensors.gathered_bytes
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        own = [*model.parameters(), *model.buffers()]
        self.activations = SavedTensors(own)
        """what the forward passes keep for the backward passes"""
        self.gathered_bytes = 0
        """the most that was gathered at once when a module began its forward pass"""
        self._own = {_storage(one)._cdata for one in own}
        self._gathered: dict[int, torch.UntypedStorage] = {}

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the steps inside the block."""
        handles = [module.register_forward_pre_hook(self._begins) for module in self._model.modules()]
        try:
            with self.activations.hooks():
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _begins(self, module: nn.Module, inputs: Any) -> None:
        """Note the parameters as they are when a module begins: sharding has gathered those that it needs by then."""
        self.activations.leave_out(self._model.parameters())
        found = [_storage(one) for one in self._model.parameters()]
        self._gathered |= {one._cdata: one for one in found if one._cdata not in self._own}
        self.gathered_bytes = max(self.gathered_bytes, sum(one.nbytes() for one in self._gathered.values()))


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    return local(tensor.detach()).untyped_storage()
