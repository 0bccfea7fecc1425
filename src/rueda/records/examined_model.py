"""The fields about a trained model that the records of landscapes and of curvature have in common."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ExaminedModel:
    """A trained model that was examined."""

    name: str
    """the name in reports: that of the run, the checkpoint, or a condition; seeds of one name are shown together"""
    workers: int | None = None
    """number of workers that trained it; None: not known (an older file, a checkpoint without its run)"""
    rehearsed: bool | None = None
    """the workers were virtual, in one process; None: not known"""

    @property
    def title(self) -> str:
        """The name with the number of workers, and whether these were rehearsed in one process.

        >>> models = ExaminedModel(name="lamb", workers=8, rehearsed=True), ExaminedModel(name="one-worker", workers=1)
        >>> [model.title for model in (*models, ExaminedModel(name="naive, 64 workers", workers=64, rehearsed=True))]
        ['lamb, 8 workers, rehearsed', 'one-worker', 'naive, 64 workers, rehearsed']
        """
        told = "" if self.workers in (None, 1) else f", {self.workers} workers"
        return self.name + told * (told not in self.name) + ", rehearsed" * (self.rehearsed is True)
