"""The state of a training with PyTorch: what a commit keeps, a failure restores, and a new worker gets.

A *handler* knows how to copy, restore and synchronise one kind of object. Other values are copied and pickled.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from rueda.hvd.basics import rank
from rueda.hvd.common.elastic import ObjectState
from rueda.hvd.torch.elastic.sampler import ElasticSampler
from rueda.hvd.torch.functions import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
    load_optimizer_state,
)
from rueda.world.elastic import is_elastic


class StateHandler:
    """Copies, restores and synchronises one object.

    Args:
        value: the object.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self._saved: Any = None
        self.save()

    def set_value(self, value: Any) -> None:
        """Replace the object by another one, which is saved."""
        self.value = value
        self.save()

    def save(self) -> None:
        """Copy the object's state in memory."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Return to the copy, which is kept: a second failure may come before the next commit."""
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self, root_rank: int = 0) -> None:
        """Give all ranks the object's state on one rank."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), root_rank))


class ModelStateHandler(StateHandler):
    """The parameters and buffers of a module."""

    def restore(self) -> None:
        """Return to the copy."""
        self.value.load_state_dict(self._saved)  # which copies the tensors

    def sync(self, root_rank: int = 0) -> None:
        """Give all ranks the parameters and buffers of one rank."""
        state = self.value.state_dict()
        broadcast_parameters(state, root_rank)
        if not all(isinstance(value, torch.Tensor) for value in state.values()):
            self.value.load_state_dict(state)  # the extra state of a module


class OptimizerStateHandler(StateHandler):
    """The state and the options of an optimizer."""

    def restore(self) -> None:
        """Return to the copy."""
        load_optimizer_state(self.value, copy.deepcopy(self._saved))

    def sync(self, root_rank: int = 0) -> None:
        """Give all ranks the state and the options of one rank."""
        broadcast_optimizer_state(self.value, root_rank)


class LRSchedulerStateHandler(StateHandler):
    """The state of a learning rate schedule."""


class SamplerStateHandler(StateHandler):
    """The examples that are processed in this epoch."""

    value: ElasticSampler

    def gather(self) -> None:
        """Learn what the other ranks have processed, so that a commit covers it."""
        self.value.gather()

    def save(self) -> None:
        """Keep what is processed; nothing is copied, since it is never changed in place."""
        self._saved = self.value.progress

    def restore(self) -> None:
        """Return to what was kept."""
        self.value.restore(self._saved)

    def sync(self, root_rank: int = 0) -> None:
        """Give all ranks what is processed, and divide the rest among them."""
        self.value.synchronize(root_rank)


Registry = list[tuple[type, Callable[[Any], StateHandler]]]
_registry: Registry = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (LRScheduler, LRSchedulerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> Registry:
    """Return which handler each class has; the first one that fits is used."""
    return _registry


def set_handler_registry(registry: Registry) -> None:
    """Replace the list of :func:`get_handler_registry`, to which a script may have added classes of its own."""
    global _registry
    _registry = registry


class TorchState(ObjectState):
    """Models, optimizers, schedules, samplers, and any other values that are given by name.

    Args:
        model: a model, if there is one.
        optimizer: an optimizer, if there is one.
        kwargs: more of them, such as ``sampler=sampler, batch=0, epoch=0``; they become attributes.
    """

    _handlers: dict[str, StateHandler]

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any
    ) -> None:
        kwargs |= {"model": model, "optimizer": optimizer}
        kinds = {
            name: next((make for kind, make in _registry if isinstance(value, kind)), None)
            for name, value in kwargs.items()
        }
        handlers = {name: make(kwargs[name]) for name, make in kinds.items() if make is not None}
        vars(self).update({"_handlers": handlers, **{name: one.value for name, one in handlers.items()}})
        others = {name: value for name, value in kwargs.items() if name not in handlers}
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **others)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._handlers:
            self._handlers[name].set_value(value)
        super().__setattr__(name, value)

    def commit(self) -> None:
        """Save the state in memory, with what all ranks have processed, and check whether hosts have changed."""
        self._gather()
        super().commit()

    def _gather(self) -> None:
        for handler in self._handlers.values():
            if isinstance(handler, SamplerStateHandler):
                handler.gather()

    def save(self) -> None:
        """Copy everything in memory."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Return to what was last saved."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Give all ranks the state of one rank, rank 0 unless that is a fresh worker, and save."""
        for handler in self._handlers.values():
            handler.sync(self.root_rank)
        super().sync()

    def reset(self) -> None:
        """Divide the examples that are left among the ranks; in an elastic job :meth:`sync` does it."""
        if not is_elastic():
            self._gather()
            for handler in self._handlers.values():
                if isinstance(handler, SamplerStateHandler):
                    handler.value.reset()
