"""Normalisation for large batches: ghosts, statistics over all workers, and their recalibration."""

from __future__ import annotations

from rueda.nn.convert import apply_ghost_batch_norm
from rueda.nn.ghost_batch_norm import GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d
from rueda.nn.recalibrate import needs_recalibration, recalibrate, stale
from rueda.nn.sync_batch_norm import SyncBatchNorm, to_sync_batch_norm

__all__ = [
    "GhostBatchNorm1d",
    "GhostBatchNorm2d",
    "GhostBatchNorm3d",
    "SyncBatchNorm",
    "apply_ghost_batch_norm",
    "needs_recalibration",
    "recalibrate",
    "stale",
    "to_sync_batch_norm",
]
