"""torch's automatic differentiation of the collectives: their passes are those of :mod:`rueda.hvd.torch.passes`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from rueda.hvd.torch.compression import Compressor
from rueda.hvd.torch.passes import Collective


def differentiable(collective: Collective, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Run a collective; autograd takes part only where a tensor requires a gradient."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return list(_Differentiable.apply(collective, *tensors))  # type: ignore[no-untyped-call]
    return list(collective.forward(tensors))


def compressed(collective: Collective, tensors: Sequence[Tensor], compression: type[Compressor]) -> list[Tensor]:
    """Run a collective, with gradients, on compressed tensors."""
    small = [compression.compress(tensor) for tensor in tensors]
    results = differentiable(collective, [tensor for tensor, _ in small])
    return [compression.decompress(result, context) for result, (_, context) in zip(results, small, strict=True)]


class _Differentiable(Function):
    """A collective whose gradients are those of its backward pass."""

    @staticmethod
    def forward(ctx: Any, collective: Collective, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run the collective."""
        results = collective.forward(tensors)
        ctx.collective, ctx.num_inputs = collective, len(tensors)
        ctx.save_for_backward(*collective.saved(tensors, results))
        ctx.mark_non_differentiable(*[x for x in results if not (x.is_floating_point() or x.is_complex())])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return the gradients of the tensors; others, such as splits, have none."""
        found = ctx.collective.backward(gradients, ctx.saved_tensors)
        return None, *found, *[None] * (ctx.num_inputs - len(found))
