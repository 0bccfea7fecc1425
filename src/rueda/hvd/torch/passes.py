"""The forward and the backward pass of each collective, as functions of torch tensors, with Horovod's factors.

Each rank has its own loss L_r. With g the gradient that arrives at the result, and N ranks in the process set:

==================  ==============================================================  ===================================
collective          backward pass                                                   gradient of
==================  ==============================================================  ===================================
``Allreduce``       all-reduce of g with the same operation and factors             the sum of all L_r (Sum, Average)
``Allgather``       average of g over the ranks, then the rank's own rows           the average of all L_r
``Broadcast``       the root gets the average of g, the other ranks zeros           the average of all L_r
``Alltoall``        each rank returns the rows of g to their senders                the sum of all L_r
``Reducescatter``   all-gather of g times the factors, times N if op is Sum         N times the sum of all L_r
==================  ==============================================================  ===================================

The factors are not consistent with each other, but scripts were tuned with them. :mod:`rueda.hvd.torch.exact` has the
collectives whose gradients are those of the sum of all losses. Backward passes communicate too, so every rank must run
them.

Every framework differentiates with these two methods: torch in :mod:`rueda.hvd.torch.autograd`, TensorFlow by
``tf.custom_gradient`` and JAX by ``jax.custom_vjp``, through :mod:`rueda.hvd.bridge`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rueda.hvd.common.exceptions import OperationError
from rueda.hvd.common.process_sets import ProcessSet
from rueda.hvd.core.entries import AVERAGE, SUM
from rueda.hvd.torch.collective_entries import (
    Reduction,
    allgather_entry,
    allreduce_entry,
    alltoall_entry,
    broadcast_entry,
    reducescatter_entry,
    run,
    suffixed,
)


class Collective(Protocol):
    """A collective with gradients."""

    def forward(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Run the collective and return its results."""

    def saved(self, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> list[Tensor]:
        """Return what the backward pass needs beside the gradients, as tensors."""

    def backward(self, gradients: Sequence[Tensor], saved: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients of the tensors, for the gradients of the results."""


@dataclass(frozen=True)
class Allreduce:
    """An all-reduce whose gradient is the all-reduce of all ranks' gradients, with the same operation and factors."""

    name: str | None
    reduction: Reduction

    def forward(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Reduce the tensors."""
        return run(allreduce_entry(tensors, self.name, self.reduction))

    def saved(self, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> list[Tensor]:
        """Return nothing."""
        return []

    def backward(self, gradients: Sequence[Tensor], saved: Sequence[Tensor]) -> list[Tensor]:
        """Reduce the gradients."""
        return run(allreduce_entry(gradients, suffixed(self.name, "backward"), self.reduction))


@dataclass(frozen=True)
class Allgather:
    """An all-gather with gradients: they are averaged over the ranks, and each rank takes those of its own rows."""

    name: str | None
    process_set: ProcessSet

    def forward(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Gather the tensors."""
        return run(allgather_entry(tensors, self.name, self.process_set))

    def saved(self, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> list[Tensor]:
        """Return the shape of each of this rank's tensors."""
        return [torch.tensor(tensor.shape, dtype=torch.int64) for tensor in tensors]

    def backward(self, gradients: Sequence[Tensor], saved: Sequence[Tensor]) -> list[Tensor]:
        """Average the gradients and return those of this rank's rows; a scalar is one row."""
        shapes = [shape.tolist() for shape in saved]
        own = [torch.tensor([shape[0] if shape else 1 for shape in shapes])]
        rows = run(allgather_entry(own, suffixed(self.name, "rows"), self.process_set))[0].view(-1, len(shapes))
        reduction = Reduction(self.process_set, AVERAGE)
        average = run(allreduce_entry(gradients, suffixed(self.name, "backward"), reduction))
        rank = self.process_set.rank()
        starts = rows[:rank].sum(0).tolist()
        return [
            gradient.narrow(0, start, shape[0] if shape else 1).view(shape)
            for gradient, start, shape in zip(average, starts, shapes, strict=True)
        ]


@dataclass(frozen=True)
class Broadcast:
    """A broadcast with gradients: the root receives their average, the other ranks receive zeros."""

    root: int
    name: str | None
    process_set: ProcessSet

    def forward(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Broadcast the root's tensor."""
        return run(broadcast_entry(tensors[0], self.root, self.name, self.process_set))

    def saved(self, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> list[Tensor]:
        """Return nothing."""
        return []

    def backward(self, gradients: Sequence[Tensor], saved: Sequence[Tensor]) -> list[Tensor]:
        """Average the gradients for the root."""
        reduction = Reduction(self.process_set, AVERAGE)
        average = run(allreduce_entry(gradients, suffixed(self.name, "backward"), reduction))[0]
        is_root = self.process_set.members()[self.process_set.rank()] == self.root
        return [average if is_root else torch.zeros_like(average)]


@dataclass(frozen=True)
class Alltoall:
    """An all-to-all of a tensor and, optionally, its splits; gradients of received rows return to their senders.

    The results are the received rows and the number of rows from each rank.
    """

    name: str | None
    process_set: ProcessSet

    def forward(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Exchange the parts of the tensor."""
        tensor, splits = (*tensors, None)[:2]
        return list(run(alltoall_entry(tensor, splits, self.name, self.process_set)))  # type: ignore[arg-type]

    def saved(self, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> list[Tensor]:
        """Return the number of rows that came from each rank."""
        return [results[1]]

    def backward(self, gradients: Sequence[Tensor], saved: Sequence[Tensor]) -> list[Tensor]:
        """Exchange the gradients in the opposite direction."""
        name = suffixed(self.name, "backward")
        return [run(alltoall_entry(gradients[0], saved[0], name, self.process_set))[0]]


@dataclass(frozen=True)
class Reducescatter:
    """A reduce-scatter by sum or average with gradients: those of all parts are gathered, times N for a sum."""

    name: str | None
    reduction: Reduction

    def forward(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Reduce the tensors and return this rank's part of each."""
        return run(reducescatter_entry(tensors, self.name, self.reduction))

    def saved(self, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> list[Tensor]:
        """Return nothing."""
        return []

    def check_gradient(self) -> None:
        """Raise if the operation has no gradient."""
        if self.reduction.operation not in (AVERAGE, SUM):
            raise OperationError(
                "reducescatter: expected op Average or Sum where gradients are needed; detach the tensor"
            )

    def backward(self, gradients: Sequence[Tensor], saved: Sequence[Tensor]) -> list[Tensor]:
        """Gather the gradients of all parts."""
        self.check_gradient()
        process_set, operation, prescale, postscale = self.reduction
        factor = prescale * postscale * (process_set.size() if operation == SUM else 1)
        gathered = run(allgather_entry(gradients, suffixed(self.name, "backward"), process_set))
        return [gradient * factor for gradient in gathered]
