"""How gradients flow through the collectives.

Each rank has a loss of its own; the gradient is that of their sum. So what flows back through a sum is the sum of all
ranks' gradients; through a gather, the sum of what each rank wants for its rows; through a broadcast, the root gets all
and the others nothing. The backward pass communicates too: all ranks must run it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from rueda.hvd.common.process_sets import ProcessSet
from rueda.hvd.core.entries import ADASUM, AVERAGE, MAX, MIN, PRODUCT, SUM, Entry
from rueda.hvd.torch.compression import Compressor
from rueda.hvd.torch.submissions import (
    Reduction,
    broadcasting,
    exchanging,
    gathering,
    reducing,
    run,
    scattering,
    suffixed,
)


class Allreduce(Function):
    """Sum and average: the gradients are summed or averaged. Minimum and maximum: their sum goes to the rank (in equal
    parts to the ranks) whose value it was. Product: their sum times the product of the others' values."""

    @staticmethod
    def forward(ctx: Any, name: str | None, reduction: Reduction, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Combine."""
        ctx.name, ctx.reduction = name, reduction
        results = run(reducing(tensors, name, reduction))
        if reduction.operation in (MIN, MAX, PRODUCT):
            ctx.save_for_backward(*tensors, *results)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Send the gradients the same way."""
        process_set, operation, prescale, postscale = ctx.reduction
        name = suffixed(ctx.name, "backward")
        if operation in (AVERAGE, SUM, ADASUM):
            return None, None, *run(reducing(gradients, name, ctx.reduction))
        saved = ctx.saved_tensors
        inputs, results = saved[: len(gradients)], saved[len(gradients) :]
        total = run(reducing(gradients, name, Reduction(process_set)))
        if operation == PRODUCT:
            others = _products_of_others(inputs, name, ctx.reduction)
            return None, None, *[g * other for g, other in zip(total, others, strict=True)]
        chosen = [(x * prescale * postscale == y).to(x.dtype) for x, y in zip(inputs, results, strict=True)]
        ties = run(reducing(chosen, name, Reduction(process_set)))
        return None, None, *[
            g * mine / ties.clamp(min=1) * (prescale * postscale)
            for g, mine, ties in zip(total, chosen, ties, strict=True)
        ]  # fmt: skip


def _products_of_others(inputs: Any, name: str | None, reduction: Reduction) -> list[Tensor]:
    """Multiply all ranks' values but this one's, also where some are zero; with what the factors contribute."""
    zeros = [(x == 0).to(x.dtype) for x in inputs]
    count = run(reducing(zeros, name, Reduction(reduction.process_set)))
    nonzero = [torch.where(x == 0, torch.ones_like(x), x) for x in inputs]
    product = run(reducing(nonzero, name, reduction))
    return [
        torch.where(number == mine, p / x, torch.zeros_like(p))  # the only zero, if there is one, is here
        for number, mine, p, x in zip(count, zeros, product, nonzero, strict=True)
    ]


class Allgather(Function):
    """Back: the gradients are summed, and each rank takes those of its rows."""

    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Gather."""
        ctx.name, ctx.process_set = name, process_set
        ctx.shapes = [tensor.shape for tensor in tensors]
        rows = [torch.tensor([shape[0] if shape else 1 for shape in ctx.shapes])]
        ctx.rows = run(gathering(rows, suffixed(name, "rows"), process_set))[0].view(-1, len(tensors))
        return tuple(run(gathering(tensors, name, process_set)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Sum, and take one's own."""
        total = run(reducing(gradients, suffixed(ctx.name, "backward"), Reduction(ctx.process_set)))
        rank = ctx.process_set.rank()
        starts = ctx.rows[:rank].sum(0).tolist()
        return None, None, *[
            gradient.narrow(0, start, int(rows)).view(shape)
            for gradient, start, rows, shape in zip(total, starts, ctx.rows[rank].tolist(), ctx.shapes, strict=True)
        ]  # fmt: skip


class Broadcast(Function):
    """Back: the root gets the sum of all gradients, the others get zeros."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root: int, name: str | None, process_set: ProcessSet) -> Tensor:
        """Broadcast."""
        ctx.name, ctx.process_set = name, process_set
        ctx.is_root = process_set.members()[process_set.rank()] == root
        return run(broadcasting(tensor, None, root, name, process_set))[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Sum for the root."""
        total = run(reducing(gradients, suffixed(ctx.name, "backward"), Reduction(ctx.process_set)))[0]
        return total if ctx.is_root else torch.zeros_like(total), None, None, None


class Alltoall(Function):
    """Back: what was received is sent home."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, splits: Any, name: str | None, process_set: ProcessSet
    ) -> tuple[Tensor, Tensor]:
        """Exchange."""
        output, received = run(exchanging(tensor, splits, name, process_set))
        ctx.name, ctx.process_set, ctx.received = name, process_set, received
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Exchange back."""
        home, _ = run(exchanging(gradients[0], ctx.received, suffixed(ctx.name, "backward"), ctx.process_set))
        return home, None, None, None


class Reducescatter(Function):
    """Back: the gradients of all parts are gathered. Sum and average only."""

    @staticmethod
    def forward(ctx: Any, name: str | None, reduction: Reduction, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Reduce and scatter."""
        if reduction.operation not in (AVERAGE, SUM):
            raise ValueError("reducescatter: expected op Average or Sum where gradients are needed; detach the tensor")
        ctx.name, ctx.reduction = name, reduction
        return tuple(run(scattering(tensors, name, reduction)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Gather."""
        process_set, operation, prescale, postscale = ctx.reduction
        factor = prescale * postscale / (process_set.size() if operation == AVERAGE else 1)
        gathered = run(gathering(gradients, suffixed(ctx.name, "backward"), process_set))
        return None, None, *[gradient * factor for gradient in gathered]


def combine(
    function: type[Function],
    make: Callable[[Sequence[Tensor], str | None, Reduction], Entry],
    tensors: Sequence[Tensor],
    name: str | None,
    reduction: Reduction,
    compression: type[Compressor],
) -> list[Tensor]:
    """Run a reduction of compressed tensors now; through its function only where a gradient will flow.

    Args:
        function: what gradients flow through.
        make: the same without gradients, an entry of the engine.
        tensors: what is combined.
        name: what they are matched by.
        reduction: how they are combined.
        compression: how they travel.
    """
    compressed = [compression.compress(tensor) for tensor in tensors]
    small = [tensor for tensor, _ in compressed]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in small):
        results = list(function.apply(name, reduction, *small))  # type: ignore[no-untyped-call]
    else:
        results = run(make(small, name, reduction))
    return [compression.decompress(result, context) for result, (_, context) in zip(results, compressed, strict=True)]
