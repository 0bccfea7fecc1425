"""Weights & Biases, offline unless ``WANDB_MODE`` says otherwise: ``wandb sync`` sends the run later."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rueda.records import Run
from rueda.train.trackers.tracker import remember, remembered, settings, task_of


class WandbTracker:
    """Writes a run of the project that is named as the task, or as ``WANDB_PROJECT`` says."""

    def __init__(self, run: Run) -> None:
        import wandb

        known = remembered(run, "wandb")
        quiet = wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or task_of(run),
            name=run.folder.name,
            id=known,
            resume=None if known is None else "allow",
            dir=str(run.folder),
            mode=os.environ.get("WANDB_MODE", "offline"),
            config=settings(run),
            settings=quiet,
        )
        if known is None:
            remember(run, "wandb", self._run.id)

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Write the figures at a step."""
        self._run.log(dict(figures), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()
