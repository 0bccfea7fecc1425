"""TensorBoard events of a training."""

from __future__ import annotations

from typing import Any

from rueda.errors import MissingExtra
from rueda.records import Row, Run

_FIGURES = (
    *("train_loss", "train_accuracy", "test_loss", "test_accuracy", "images_per_second", "rate", "global_batch"),
    *("model_flops_utilisation", "noise_scale", "noise_scale_low", "noise_scale_high"),
)


def open_writer(run: Run) -> Any:
    """Open a TensorBoard writer in the run folder."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtra("tensorboard", "tensorboard") from None
    return SummaryWriter(str(run.folder / "tensorboard"))


def write_row(writer: Any, row: Row) -> None:
    """Write the figures of a row at its step."""
    values: dict[str, float | None] = {name: getattr(row, name) for name in _FIGURES}
    for of, found in row.figures.items():
        values |= {f"{of}_{name}".replace(" ", "_"): value for name, value in found.items()}
    for name, value in values.items():
        if value is not None:
            writer.add_scalar(name, value, row.step)
    writer.flush()
