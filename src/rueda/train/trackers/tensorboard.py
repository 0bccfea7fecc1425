"""TensorBoard events of a training."""

from __future__ import annotations

from collections.abc import Mapping

from rueda.records import Run


class TensorboardTracker:
    """Writes TensorBoard events into the run folder."""

    def __init__(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.folder / "tensorboard"))  # type: ignore[no-untyped-call]

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Write the figures as scalars, so that a running TensorBoard shows them."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)  # type: ignore[no-untyped-call]
        self._writer.flush()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Close the file."""
        self._writer.close()  # type: ignore[no-untyped-call]
