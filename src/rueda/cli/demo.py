"""``rueda demo``: what a newcomer sees first; ``make demo`` runs it."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

_TASK = "glyphs-cnn"


def demo(
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 4,
) -> None:
    """Train a small network on generated images with 1 and with 2 workers, and compare. No download, no GPU."""
    from rich.console import Console
    from rich.table import Table

    from rueda.cli.train import launch_training
    from rueda.records import Run
    from rueda.tasks import load_task

    started = time.monotonic()
    recipe = load_task(_TASK).recipe.change(epochs=epochs)
    table = Table(title=f"{_TASK}, {epochs} epochs, batch {recipe.batch} a worker")
    for heading in ("workers", "global batch", "updates", "images/s", "train accuracy", "test accuracy"):
        table.add_column(heading, justify="right")
    for workers in (1, 2):
        typer.echo(f"\n{workers} worker{'s' if workers > 1 else ''}:", err=True)
        with tempfile.TemporaryDirectory(prefix="rueda-demo-") as folder:
            run = Run(Path(folder, "run"))
            status = launch_training(_TASK, recipe.change(workers=workers), run.folder)
            if status != 0:
                raise typer.Exit(status)
            last = run.rows("epoch")[-1]
            speed = last["examples"] / last["seconds"]
        table.add_row(
            str(workers),
            f"{last['global_batch']}",
            f"{last['step']:,}",
            f"{speed:,.0f}",
            f"{100 * last['train_accuracy']:.1f} %",
            f"{100 * last['test_accuracy']:.1f} %",
        )
    console = Console()
    console.print()
    console.print(table)
    console.print(f"{time.monotonic() - started:.0f} s. Each worker trains on half of the images of every update.")
    console.print("Next: rueda train --help, or your own script on N workers: rueda run -np 2 python train.py")
