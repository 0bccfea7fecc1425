"""The ``reducescatter`` family: each rank receives its part of the reduction of all ranks' tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.torch import passes
from rueda.hvd.torch.autograd import compressed
from rueda.hvd.torch.collective_entries import Reduction, first, reducescatter_entry
from rueda.hvd.torch.compression import Compression, Compressor
from rueda.hvd.torch.handles import submit
from rueda.hvd.torch.reduce_ops import Average


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start a reduce-scatter and return its handle; the arguments are those of :func:`reducescatter`."""
    reduction = Reduction(process_set, op, prescale_factor, postscale_factor)
    return submit(reducescatter_entry([tensor], name, reduction), first)


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduce the ranks' tensors and return this rank's part of the rows.

    Args:
        tensor: of the same shape and type on all ranks; rows that do not divide evenly go to the first ranks.
        name: the tensor's name, by which ranks match it; None: it is matched by the order of submission.
        compression: ``Compression.fp16`` or ``.bf16`` sends half the bytes.
        op: Average (the default), Sum, Min, Max or Product.
        process_set: the ranks that take part.
        prescale_factor: every rank's tensor is multiplied by it before the reduction.
        postscale_factor: the result is multiplied by it.
    """
    return grouped_reducescatter(
        [tensor], name, compression, op, process_set, prescale_factor, postscale_factor
    )[0]  # fmt: skip


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start a reduce-scatter of a list of tensors and return its one handle."""
    reduction = Reduction(process_set, op, prescale_factor, postscale_factor)
    return submit(reducescatter_entry(tensors, name, reduction), tuple)


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Reduce a list of tensors as one collective and return this rank's part of the rows of each."""
    reduction = Reduction(process_set, op, prescale_factor, postscale_factor)
    collective = passes.Reducescatter(name, reduction)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        collective.check_gradient()  # not only in the backward pass
    return compressed(collective, tensors, compression)
