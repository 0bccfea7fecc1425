"""Batch norm: the statistics of each worker's share, or of the entire batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from rueda.check.patches import Patches
from rueda.check.scale.batches import BatchTracker
from rueda.check.scale.notes import Notes
from rueda.nn.sync_batch_norm import SyncBatchNorm

_PER_WORKER = (
    "batch norm uses the statistics of each worker's share, as ghost batch norm does; "
    "--batch-norm synchronised uses those of the entire batch, as the serial script"
)


class BatchNorms:
    """Follows the batch-norm layers of the script.

    Args:
        tracker: knows whether the batch is shared.
        notes: where the user is told which statistics are used.
        synchronised: whether the statistics are those of the entire batch.
    """

    def __init__(self, tracker: BatchTracker, notes: Notes, *, synchronised: bool) -> None:
        self._tracker, self._notes, self._synchronised = tracker, notes, synchronised
        self._used: dict[int, Any] = {}  # the layers that have seen a share since the last backward pass
        self.differ = False
        """whether a layer has used the statistics of a share"""

    def install(self, patches: Patches) -> None:
        """Replace the forward pass of torch's layers."""
        patches.replace(_BatchNorm, "forward", self._following)

    def _following(self, original: Any) -> Any:
        def forward(layer: Any, x: Tensor) -> Tensor:
            share = None if torch.compiler.is_compiling() else self._tracker.share
            if share is None or not layer.training or isinstance(layer, SyncBatchNorm):
                return original(layer, x)  # type: ignore[no-any-return]
            self._used[id(layer)] = layer
            if not self._synchronised:
                self.differ = True
                self._notes.say(_PER_WORKER)
                return original(layer, x)  # type: ignore[no-any-return]
            if not share.num_counted:
                self._notes.refuse(
                    f"synchronised batch norm needs an example for each worker, got a batch of {share.whole}; "
                    "give drop_last=True, or --batch-norm worker"
                )
            kept = layer.__class__
            layer.__class__ = SyncBatchNorm  # its forward pass needs nothing that a batch-norm layer does not have
            try:
                return SyncBatchNorm.forward(layer, x)
            finally:
                layer.__class__ = kept

        return forward

    def take_statistics(self) -> list[Tensor]:
        """Return the running statistics that have changed since the last call, in the same order on all ranks."""
        layers, self._used = list(self._used.values()), {}
        found = [buffer for layer in layers for buffer in (layer.running_mean, layer.running_var)]
        return [buffer for buffer in found if isinstance(buffer, Tensor)]
