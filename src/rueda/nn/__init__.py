"""Normalisation for large batches: ghost and synchronised batch norm, and recalibration of running statistics.

Importing this package does not import torch; the first use of a name does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rueda.lazy import lazily

if TYPE_CHECKING:
    from rueda.nn.convert import apply_ghost_batch_norm
    from rueda.nn.ghost_batch_norm import GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d
    from rueda.nn.recalibration import needs_recalibration, recalibrate, stale
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

__getattr__ = lazily(
    __name__,
    {
        "GhostBatchNorm1d": "ghost_batch_norm",
        "GhostBatchNorm2d": "ghost_batch_norm",
        "GhostBatchNorm3d": "ghost_batch_norm",
        "SyncBatchNorm": "sync_batch_norm",
        "apply_ghost_batch_norm": "convert",
        "needs_recalibration": "recalibration",
        "recalibrate": "recalibration",
        "stale": "recalibration",
        "to_sync_batch_norm": "sync_batch_norm",
    },
)


def __dir__() -> list[str]:
    return __all__
