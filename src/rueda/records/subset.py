"""Which part of its training set a run of a learning curve was trained on, as ``subset.json`` in the run folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from rueda.records.json_record import FORMAT, Fraction, JsonRecord, NotNegativeInt, PositiveInt

Own = TypeVar("Own", bound="TrainedSubset")


@dataclass(frozen=True, kw_only=True)
class TrainedSubset(JsonRecord):
    """A random part of a task's training set.

    >>> TrainedSubset(task="clouds", examples=30, seed=0, growth=0.5).words
    '30 examples of clouds, seed 0, growth 0.5'
    """

    FILE: ClassVar[str] = "subset.json"
    NOUN: ClassVar[str] = "the subset of a run"
    COMMAND: ClassVar[str] = "rueda forecast"

    task: str
    examples: PositiveInt
    seed: NotNegativeInt
    """the seed of the drawing, and of the training"""
    growth: Fraction
    """how the number of updates grows with the set: from 0, the same updates, to 1, the same epochs"""

    @classmethod
    def from_json(cls: type[Own], text: str, *, source: str | None = None, again: str | None = None) -> Own:
        """Read the record; older files name no format."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            data = None
        if isinstance(data, dict) and "format" not in data:
            text = json.dumps({**data, "format": FORMAT})
        return super().from_json(text, source=source, again=again)

    @property
    def words(self) -> str:
        """What was drawn and how."""
        return f"{self.examples:,} examples of {self.task}, seed {self.seed}, growth {self.growth:g}"
