"""Batch normalisation over the batches of all workers, or of a process set.

The method is that of :mod:`rueda.nn.sync_batch_norm`. Here its collectives go through the engine, in one order with the
all-reduces of gradients that run at the same time: two threads that use one process group could start their collectives
in a different order on each rank; through the engine they cannot.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.torch.mpi_ops import Sum, allgather, allreduce_
from rueda.nn.sync_batch_norm import SyncBatchNorm as _SyncBatchNorm


class SyncBatchNorm(_SyncBatchNorm):
    """Batch norm of [N, C, ...] over all workers' batches; plain batch norm in evaluation and on one worker.

    It works on any device and for any batch sizes, also an empty batch. In training every worker must call it equally
    often.

    Args:
        num_features: the number of channels C.
        eps: added to the variance.
        momentum: the weight of a batch in the running averages; None: they are the plain mean over all batches.
        affine: whether the layer has a weight and a bias.
        track_running_stats: whether to keep running averages for evaluation.
        process_set: the workers that share statistics.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set

    def _communicator(self) -> _EngineCollectives:
        return _EngineCollectives(self.process_set)


@dataclass(frozen=True)
class _EngineCollectives:
    """The collectives that the layer needs, run by the engine."""

    process_set: ProcessSet

    @property
    def size(self) -> int:
        return self.process_set.size()

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        return list(allgather(tensor[None], name="sync_batch_norm.statistics", process_set=self.process_set))

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return allreduce_(tensor, op=Sum, name="sync_batch_norm.gradients", process_set=self.process_set)
