"""The ``allreduce`` family: every rank receives the reduction of all ranks' tensors."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.torch import passes
from rueda.hvd.torch.autograd import compressed
from rueda.hvd.torch.collective_entries import Reduction, allreduce_entry, first, run
from rueda.hvd.torch.compression import Compression, Compressor
from rueda.hvd.torch.handles import submit
from rueda.hvd.torch.reduce_ops import handle_average_backwards_compatibility
from rueda.hvd.torch.resubmission import Arguments, remember, resubmit


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an all-reduce into a new tensor and return its handle; the arguments are those of :func:`allreduce`."""
    arguments = (average, op, prescale_factor, postscale_factor, process_set)
    return resubmit(tensor, name, arguments, None) or _submit_anew(tensor, name, arguments, in_place=False)


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
    """Reduce the ranks' tensors into a new one, which is the same on all ranks.

    Args:
        tensor: of the same shape and type on all ranks.
        average: the older form of ``op=Average`` (True) or ``op=Sum`` (False).
        name: the tensor's name, by which ranks match it; None: it is matched by the order of submission.
        compression: ``Compression.fp16`` or ``.bf16`` sends half the bytes.
        op: Average (the default), Sum, Adasum, Min, Max or Product. Averages of integers are rounded towards zero.
        prescale_factor: every rank's tensor is multiplied by it before the reduction.
        postscale_factor: the result is multiplied by it.
        process_set: the ranks that take part.
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
    """Start an all-reduce in place and return its handle."""
    arguments = (average, op, prescale_factor, postscale_factor, process_set)
    return resubmit(tensor, name, arguments, [tensor]) or _submit_anew(tensor, name, arguments, in_place=True)


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduce the ranks' tensors in place."""
    reduction = _reduction(average, op, prescale_factor, postscale_factor, process_set)
    return run(allreduce_entry([tensor], name, reduction, in_place=True))[0]


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an all-reduce of a list of tensors into new ones and return its one handle."""
    reduction = _reduction(average, op, prescale_factor, postscale_factor, process_set)
    return submit(allreduce_entry(tensors, name, reduction), tuple)


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
    """Reduce a list of tensors as one collective into new tensors, which are the same on all ranks."""
    reduction = _reduction(average, op, prescale_factor, postscale_factor, process_set)
    return compressed(passes.Allreduce(name, reduction), tensors, compression)


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an all-reduce of a list of tensors in place and return its one handle."""
    reduction = _reduction(average, op, prescale_factor, postscale_factor, process_set)
    return submit(allreduce_entry(tensors, name, reduction, in_place=True), tuple)


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tuple[Tensor, ...]:
    """Reduce a list of tensors in place, as one collective."""
    reduction = _reduction(average, op, prescale_factor, postscale_factor, process_set)
    return tuple(run(allreduce_entry(tensors, name, reduction, in_place=True)))


def _submit_anew(tensor: Tensor, name: str | None, arguments: Arguments, *, in_place: bool) -> int:
    entry = allreduce_entry([tensor], name, _reduction(*arguments), in_place=in_place)
    handle = submit(entry, first)
    remember(tensor, name, arguments, entry)
    return handle


def _reduction(
    average: bool | None, op: int | None, prescale: float, postscale: float, process_set: ProcessSet
) -> Reduction:
    return Reduction(process_set, handle_average_backwards_compatibility(op, average), prescale, postscale)
