"""Collectives whose gradients are exactly those of the sum of all ranks' losses.

Horovod's own backward passes, which :mod:`rueda.hvd.torch` follows, scale some gradients by the number of ranks N
(:mod:`rueda.hvd.torch.passes` has the table). Here the factor is taken out: an all-gather or a broadcast returns N
times Horovod's gradient, a reduce-scatter 1/N of it. For a minimum or maximum, the gradient goes to the rank that had
the extreme value, in equal parts if several had it; for a product, it is multiplied by the product of the other ranks'
values. The results of the collectives are the same, and so are the arguments, without the older ``average``::

    features = hvd.exact.allgather(features)      # instead of hvd.allgather
    contrastive_loss(features).backward()

``alltoall``, and ``allreduce`` by Sum or Average, are exact in Horovod too. The operations in place and those that
return a handle carry no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.core.entries import MAX, MIN, PRODUCT
from rueda.hvd.torch import copy_ops, passes, reducescatter_ops
from rueda.hvd.torch.autograd import compressed
from rueda.hvd.torch.collective_entries import Reduction, allreduce_entry, run, suffixed
from rueda.hvd.torch.compression import Compression, Compressor
from rueda.hvd.torch.copy_ops import alltoall
from rueda.hvd.torch.reduce_ops import Average, handle_average_backwards_compatibility

__all__ = [
    "allgather", "allreduce", "alltoall", "broadcast", "grouped_allgather", "grouped_allreduce",
    "grouped_reducescatter", "reducescatter",
]  # fmt: skip


def allreduce(
    tensor: Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduce the ranks' tensors into a new one, which is the same on all ranks."""
    return grouped_allreduce([tensor], name, compression, op, prescale_factor, postscale_factor, process_set)[0]


def grouped_allreduce(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Reduce a list of tensors as one collective; the arguments are those of ``hvd.grouped_allreduce``."""
    reduction = Reduction(
        process_set, handle_average_backwards_compatibility(op, None), prescale_factor, postscale_factor
    )
    kind = _Selection if op in (MIN, MAX, PRODUCT) else passes.Allreduce
    return compressed(kind(name, reduction), tensors, compression)


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """Return all ranks' tensors concatenated along the first dimension, in which they may differ."""
    return copy_ops.allgather(_scale_gradient(tensor, process_set.size()), name, process_set)


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> tuple[Tensor, ...]:
    """Gather a list of tensors as one collective: the n-th result concatenates all ranks' n-th tensors."""
    factor = process_set.size()
    return copy_ops.grouped_allgather([_scale_gradient(tensor, factor) for tensor in tensors], name, process_set)


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Return a copy of the tensor of ``root_rank``, which is a rank among all workers, not within the process set."""
    return copy_ops.broadcast(_scale_gradient(tensor, process_set.size()), root_rank, name, process_set)


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduce the ranks' tensors by sum or average and return this rank's part of the rows."""
    return grouped_reducescatter(
        [tensor], name, compression, op, process_set, prescale_factor, postscale_factor
    )[0]  # fmt: skip


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Reduce a list of tensors as one collective; the arguments are those of ``hvd.grouped_reducescatter``."""
    factor = 1 / process_set.size()
    return reducescatter_ops.grouped_reducescatter(
        [_scale_gradient(tensor, factor) for tensor in tensors],
        name, compression, op, process_set, prescale_factor, postscale_factor,
    )  # fmt: skip


class _Scaled(Function):
    """The identity, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * ctx.factor, None


def _scale_gradient(tensor: Tensor, factor: float) -> Tensor:
    scaled: Tensor = _Scaled.apply(tensor, factor)  # type: ignore[no-untyped-call]
    return scaled


class _Selection(passes.Allreduce):
    """A minimum, maximum or product over the ranks."""

    def saved(self, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors and the results."""
        return [*tensors, *results]

    def backward(self, gradients: Sequence[Tensor], saved: Sequence[Tensor]) -> list[Tensor]:
        """Sum the gradients and multiply them by this rank's derivative of the result."""
        process_set, operation, prescale, postscale = self.reduction
        name = suffixed(self.name, "backward")
        inputs, results = saved[: len(gradients)], saved[len(gradients) :]
        total = run(allreduce_entry(gradients, name, Reduction(process_set)))
        if operation == PRODUCT:
            others = _products_of_others(inputs, name, self.reduction)
            return [g * other for g, other in zip(total, others, strict=True)]
        chosen = [(x * prescale * postscale == y).to(x.dtype) for x, y in zip(inputs, results, strict=True)]
        ties = run(allreduce_entry(chosen, name, Reduction(process_set)))
        return [
            g * mine / ties.clamp(min=1) * (prescale * postscale)
            for g, mine, ties in zip(total, chosen, ties, strict=True)
        ]


def _products_of_others(inputs: Any, name: str | None, reduction: Reduction) -> list[Tensor]:
    """Return the scaled product of all other ranks' values; zeros are counted, since one cannot divide by them."""
    zeros = [(x == 0).to(x.dtype) for x in inputs]
    count = run(allreduce_entry(zeros, name, Reduction(reduction.process_set)))
    nonzero = [torch.where(x == 0, torch.ones_like(x), x) for x in inputs]
    product = run(allreduce_entry(nonzero, name, reduction))
    return [
        torch.where(number == mine, p / x, torch.zeros_like(p))  # no other rank has a zero here
        for number, mine, p, x in zip(count, zeros, product, nonzero, strict=True)
    ]
