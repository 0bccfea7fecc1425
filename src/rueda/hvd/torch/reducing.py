"""The ``allreduce`` family: every rank gets the combination of all tensors.

With a trailing underscore in place, ``_async`` with a handle, ``grouped_`` for lists that travel as one.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.torch import gradients
from rueda.hvd.torch.compression import Compression, Compressor
from rueda.hvd.torch.handles import all_results, first_result, launch
from rueda.hvd.torch.operations import handle_average_backwards_compatibility
from rueda.hvd.torch.submissions import Reduction, reducing, run


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to combine the ranks' tensors into a new one; gives a handle."""
    reduction = _reduction(average, op, prescale_factor, postscale_factor, process_set)
    return launch(reducing([tensor], name, reduction), first_result)


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Combine the ranks' tensors into a new one, equal on all.

    Args:
        tensor: of the same shape and type on all ranks.
        average: the old way to say ``op=Average`` (True) or ``op=Sum`` (False).
        name: what the tensor is matched by; None: by order.
        compression: ``Compression.fp16`` or ``.bf16`` sends half the bytes.
        op: Average (the default), Sum, Adasum, Min, Max or Product. Whole numbers are averaged towards zero.
        prescale_factor: what every tensor is multiplied by before.
        postscale_factor: what the result is multiplied by.
        process_set: among whom.
    """
    return grouped_allreduce(
        [tensor], average, name, compression, op, prescale_factor, postscale_factor, process_set
    )[0]  # fmt: skip


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to combine the ranks' tensors in place; gives a handle."""
    reduction = _reduction(average, op, prescale_factor, postscale_factor, process_set)
    return launch(reducing([tensor], name, reduction, [tensor]), lambda _: tensor)


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Combine the ranks' tensors in place."""
    reduction = _reduction(average, op, prescale_factor, postscale_factor, process_set)
    run(reducing([tensor], name, reduction, [tensor]))
    return tensor


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to combine lists of tensors into new ones; gives one handle."""
    reduction = _reduction(average, op, prescale_factor, postscale_factor, process_set)
    return launch(reducing(tensors, name, reduction), all_results)


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Combine lists of tensors into new ones, equal on all ranks."""
    reduction = _reduction(average, op, prescale_factor, postscale_factor, process_set)
    return gradients.combine(gradients.Allreduce, reducing, tensors, name, reduction, compression)


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to combine lists of tensors in place; gives one handle."""
    reduction = _reduction(average, op, prescale_factor, postscale_factor, process_set)
    outputs = list(tensors)
    return launch(reducing(tensors, name, reduction, outputs), lambda _: outputs)


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Combine lists of tensors in place."""
    reduction = _reduction(average, op, prescale_factor, postscale_factor, process_set)
    outputs = list(tensors)
    run(reducing(tensors, name, reduction, outputs))
    return outputs


def _reduction(
    average: bool | None, op: int | None, prescale: float, postscale: float, process_set: ProcessSet
) -> Reduction:
    return Reduction(process_set, handle_average_backwards_compatibility(op, average), prescale, postscale)
