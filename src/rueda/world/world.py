"""The world: all workers of one training, and what they can do together.

Alone, nothing is communicated and no process group is made: every method below then returns at once, so
that one code path serves 1 and N workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rueda.errors import WorldError
from rueda.world import seeds
from rueda.world.identity import Identity

Value = TypeVar("Value")
Parameters = ParamSpec("Parameters")

_OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.SUM,  # Gloo has no mean: divided afterwards
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}


@dataclass(frozen=True, kw_only=True)
class World:
    """The workers, seen from one of them. Made by :func:`rueda.init`.

    >>> world = World()
    >>> world.rank, world.size, world.is_main
    (0, 1, True)
    >>> world.all_reduce(torch.tensor([1.0, 2.0]), "mean")
    tensor([1., 2.])
    """

    identity: Identity = field(default_factory=Identity)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    seed: int | None = None

    @property
    def rank(self) -> int:
        """This worker's number among all."""
        return self.identity.rank

    @property
    def size(self) -> int:
        """How many workers there are."""
        return self.identity.size

    @property
    def local_rank(self) -> int:
        """This worker's number on its own machine."""
        return self.identity.local_rank

    @property
    def local_size(self) -> int:
        """How many workers run on this machine."""
        return self.identity.local_size

    @property
    def is_main(self) -> bool:
        """True on the one worker that writes and prints."""
        return self.identity.rank == 0

    # Collectives: all workers must call them, in the same order.

    def barrier(self) -> None:
        """Wait until every worker is here."""
        if self.size > 1:
            dist.barrier()

    def all_reduce(self, tensor: Tensor, operation: str = "sum") -> Tensor:
        """Combine the workers' tensors into a new one, equal on all: sum, mean, min, max or product."""
        if operation not in _OPERATIONS:
            raise WorldError("all_reduce", expected=f"one of {', '.join(_OPERATIONS)}", got=operation, do="choose one")
        if operation == "mean" and not (tensor.is_floating_point() or tensor.is_complex()):
            raise WorldError(
                "the mean", expected="a floating-point tensor", got=str(tensor.dtype), do="convert it first"
            )
        result = tensor.detach().clone()
        if self.size > 1:
            dist.all_reduce(result, _OPERATIONS[operation])
            if operation == "mean":
                result /= self.size
        return result

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Give every worker the tensors of all, in rank order; their shapes must be equal."""
        if self.size == 1:
            return [tensor.detach().clone()]
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor.detach().contiguous())
        return parts

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        """Give every worker a copy of the tensor of one."""
        self._check_source(source)
        result = tensor.detach().clone()
        if self.size > 1:
            dist.broadcast(result, source)
        return result

    def all_gather_object(self, value: Value) -> list[Value]:
        """Give every worker the Python objects of all, in rank order (pickled between the workers)."""
        if self.size == 1:
            return [value]
        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, value)
        return parts

    def broadcast_object(self, value: Value, source: int = 0) -> Value:
        """Give every worker the Python object of one."""
        self._check_source(source)
        if self.size == 1:
            return value
        parts: list[Any] = [value]
        dist.broadcast_object_list(parts, source)
        return parts[0]  # type: ignore[no-any-return]

    # One worker on behalf of all.

    def on_main(
        self, function: Callable[Parameters, Value], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Value:
        """Call a function on rank 0 only and give its result to all; an error there is raised everywhere.

        For printing, saving and logging: ``world.on_main(torch.save, model.state_dict(), "model.pt")``.
        """
        if self.size == 1:
            return function(*args, **kwargs)
        result: Value | None = None
        error: Exception | None = None
        if self.is_main:
            try:
                result = function(*args, **kwargs)
            except Exception as caught:  # any error must reach the others, or they wait for ever
                error = caught
        message = None if error is None else f"{type(error).__name__}: {error}"
        value, message = self.broadcast_object((result, message))
        if error is not None:
            raise error
        if message is not None:
            raise WorldError(f"rank 0 failed while the others waited: {message}")
        return value  # type: ignore[return-value]

    @contextmanager
    def local_main_first(self) -> Iterator[None]:
        """Let the first worker of each machine through, then its neighbours: for downloads into a shared cache."""
        if self.local_rank != 0:
            self.barrier()
        try:
            yield
        finally:  # also after an error: the others must not wait for ever
            if self.local_rank == 0:
                self.barrier()

    # The model.

    def synchronise(self, model: nn.Module) -> None:
        """Give every worker rank 0's parameters and buffers."""
        if self.size > 1:
            for tensor in (*model.parameters(), *model.buffers()):
                dist.broadcast(tensor.detach(), 0)

    def wrap(self, model: nn.Module, *, sync_buffers: bool = True, **options: Any) -> nn.Module:
        """Move a model to this worker's device and make its gradients the average over all workers.

        On N workers that is :class:`torch.nn.parallel.DistributedDataParallel`, which starts all of them from rank
        0's state; alone it is the model itself. From here on random numbers (dropout) differ from rank to rank.

        Args:
            model: the model, built alike on every rank.
            sync_buffers: copy rank 0's buffers (batch-norm statistics) to all at every forward pass, as torch does
                by default. False leaves them to each worker.
            options: further arguments of DistributedDataParallel.
        """
        model = model.to(self.device)
        if self.seed is not None:
            seeds.seed_worker(self.seed, self.rank, step=0)
        if self.size == 1:
            return model
        if not any(parameter.requires_grad for parameter in model.parameters()):
            self.synchronise(model)
            return model
        from torch.nn.parallel import DistributedDataParallel

        # torch 2.13 renamed broadcast_buffers; each name warns or fails on the other side of that release.
        name = "forward_sync_buffers" if _knows_forward_sync(DistributedDataParallel) else "broadcast_buffers"
        devices = [self.device] if self.device.type == "cuda" else None
        if not sync_buffers:
            self.synchronise(model)  # the old name leaves the buffers out at the start as well
        return DistributedDataParallel(model, device_ids=devices, **{name: sync_buffers, **options})

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Give the model that :meth:`wrap` was given: for its state dict, whose names then are the same on 1 and N."""
        from torch.nn.parallel import DistributedDataParallel

        return model.module if isinstance(model, DistributedDataParallel) else model

    def _check_source(self, source: int) -> None:
        if not 0 <= source < self.size:
            raise WorldError("source", expected=f"a rank below {self.size}", got=source, do="name an existing worker")


def _knows_forward_sync(wrapper: Callable[..., nn.Module]) -> bool:
    import inspect

    return "forward_sync_buffers" in inspect.signature(wrapper).parameters
