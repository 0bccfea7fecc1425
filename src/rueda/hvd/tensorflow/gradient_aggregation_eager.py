"""Horovod's helper for local gradient aggregation in eager mode; :mod:`.gradient_aggregation` works in all modes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.tensorflow.gradient_aggregation import LocalGradientAggregationHelper


class LocalGradientAggregationHelperEager(LocalGradientAggregationHelper):
    """The helper for eager mode: its base class without the arguments ``rank``, ``optimizer_type`` and ``name``.

    Args:
        backward_passes_per_step, allreduce_func, sparse_as_dense, average_aggregated_gradients, process_set,
            scale_local_gradients: see :class:`LocalGradientAggregationHelper`.
    """

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]],
        sparse_as_dense: bool = False,
        average_aggregated_gradients: bool = False,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        super().__init__(
            backward_passes_per_step, allreduce_func, sparse_as_dense, average_aggregated_gradients,
            process_set=process_set, scale_local_gradients=scale_local_gradients,
        )  # fmt: skip
