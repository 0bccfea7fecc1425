"""Batch normalisation over the batches of all workers, or of a process set: :mod:`rueda.nn.sync_batch_norm`.

The method is that module's; here it talks through the core (names, negotiation, stalls), in step with the gradients
that the optimizer sends at the same time. Two collectives on one process group from two threads could meet in
another order on another rank; through the core they cannot.
"""

from __future__ import annotations

from typing import cast

import torch.distributed as dist
from torch import Tensor

from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.torch.mpi_ops import Sum, allgather, allreduce_
from rueda.nn.sync_batch_norm import SyncBatchNorm as _SyncBatchNorm


class SyncBatchNorm(_SyncBatchNorm):
    """Batch norm of [N, C, ...] over all workers' batches; alone, and in evaluation, plain batch norm.

    On any device, for any batch sizes, an empty one too. In training every worker must call it equally often.

    Args:
        num_features: the channels C.
        eps: added to the variance.
        momentum: of the running averages; None: their plain mean.
        affine: with weight and bias.
        track_running_stats: keep running averages for evaluation.
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

    def forward(self, input: Tensor) -> Tensor:
        """Normalise by the joined statistics in training, by the running averages in evaluation."""
        if not self.training or self.process_set.size() == 1:
            return super(_SyncBatchNorm, self).forward(input)
        # For this call alone: the layer itself must stay picklable.
        through = _Through(self.process_set)
        self.process_group = cast(dist.ProcessGroup, through)
        try:
            return super().forward(input)
        except ValueError:
            if through.error is not None:  # torch's log of errors stumbles over a group that it does not know
                raise through.error from None
            raise
        finally:
            self.process_group = None


class _Through:
    """Stands where the layer expects a process group, and passes its two collectives on to the core."""

    def __init__(self, process_set: ProcessSet) -> None:
        self._process_set = process_set
        self.error: Exception | None = None

    def size(self) -> int:
        return self._process_set.size()

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], options: object = None) -> _Done:
        try:
            parts = allgather(inputs[0][None], name="sync_batch_norm.statistics", process_set=self._process_set)
        except Exception as error:
            self.error = error
            raise
        for output, part in zip(outputs[0], parts, strict=True):
            output.copy_(part)
        return _Done()

    def allreduce(self, tensors: list[Tensor], options: object = None) -> _Done:
        allreduce_(tensors[0], op=Sum, name="sync_batch_norm.gradients", process_set=self._process_set)
        return _Done()


class _Done:
    """A collective that has ended."""

    def wait(self) -> bool:
        return True
