"""The ``reducescatter`` family: each rank gets its part of the combination of all tensors."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.torch import gradients
from rueda.hvd.torch.compression import Compression, Compressor
from rueda.hvd.torch.handles import all_results, first_result, launch
from rueda.hvd.torch.operations import Average
from rueda.hvd.torch.submissions import Reduction, scattering


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start to combine the tensors and give each rank its part; gives a handle."""
    reduction = Reduction(process_set, op, prescale_factor, postscale_factor)
    return launch(scattering([tensor], name, reduction), first_result)


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Combine the tensors and give each rank its part of the rows; where they do not divide, the first get one more."""
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
    """Start to combine lists of tensors and give each rank its part of each; gives one handle."""
    reduction = Reduction(process_set, op, prescale_factor, postscale_factor)
    return launch(scattering(tensors, name, reduction), all_results)


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Combine lists of tensors and give each rank its part of each."""
    reduction = Reduction(process_set, op, prescale_factor, postscale_factor)
    return gradients.combine(gradients.Reducescatter, scattering, tensors, name, reduction, compression)
