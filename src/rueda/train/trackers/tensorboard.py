"""TensorBoard events of a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rueda.records import Run


class TensorboardTracker:
    """Writes TensorBoard events into the run folder."""

    def __init__(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(run.folder / "tensorboard"))

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Write the figures as scalars, so that a running TensorBoard shows them."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
