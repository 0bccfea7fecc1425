"""The journals of a job, as its workers have written them."""

from __future__ import annotations

import base64
import json
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

Note = dict[str, Any]


@dataclass(frozen=True)
class Epoch:
    """One pass of one rank over a loader."""

    rank: int
    note: Note

    @cached_property
    def indices(self) -> array[int]:
        """The indices that were read, as the loader's sampler gave them."""
        return unpacked(self.note["indices"])

    @cached_property
    def levels(self) -> list[array[int]]:
        """The indices of each ``Subset`` around the data set, the outermost first."""
        return [unpacked(one) for one in self.note["levels"]]

    @cached_property
    def rows(self) -> array[int]:
        """The number of examples of each batch."""
        return unpacked(self.note["rows"])

    @property
    def trains(self) -> bool:
        """Whether an optimizer made steps during the epoch."""
        return bool(self.note["steps"])

    def resolved(self, level: int) -> list[int]:
        """Return the indices as those of a level: 0 is the loader's own data set, 1 the one within its Subset, ..."""
        found = list(self.indices)
        for chosen in self.levels[:level]:
            found = [chosen[one] for one in found]
        return found


@dataclass
class Journals:
    """The journals of all ranks.

    Args:
        notes: for each rank, its observations in their order.
        script: the script's file, for what is read from its text.
        waiting: the places of ranks that wait for each other in vain, by rank; empty if none does.
    """

    notes: list[list[Note]]
    script: str = ""
    waiting: dict[int, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.notes)

    @cached_property
    def text(self) -> str:
        """The text of the script; nothing if it cannot be read."""
        try:
            return Path(self.script).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return ""

    def of_kind(self, kind: str) -> list[list[Note]]:
        """Return the observations of one kind, for each rank."""
        return [[note for note in notes if note["kind"] == kind] for notes in self.notes]

    def flat(self, kind: str) -> list[tuple[int, Note]]:
        """Return the observations of one kind with their ranks."""
        return [(rank, note) for rank, notes in enumerate(self.of_kind(kind)) for note in notes]

    @cached_property
    def epochs(self) -> dict[tuple[str, int], dict[int, Epoch]]:
        """The epochs by loader and number, for each rank that has it."""
        found: dict[tuple[str, int], dict[int, Epoch]] = {}
        for rank, note in self.flat("epoch"):
            found.setdefault((note["loader"], note["number"]), {})[rank] = Epoch(rank, note)
        return found

    def whole_epochs(self, *, training: bool) -> Iterator[dict[int, Epoch]]:
        """Iterate over the epochs that every rank has begun, of loops that train, or of loops that evaluate."""
        for ranks in self.epochs.values():
            if len(ranks) == self.size and all(one.trains == training for one in ranks.values()):
                yield ranks


def read_journals(folder: Path, size: int, script: str = "") -> Journals:
    """Read the journals of all ranks; a line that a killed worker has not finished is left out."""
    notes: list[list[Note]] = [[] for _ in range(size)]
    for rank in range(size):
        for file in sorted(folder.glob(f"rank-{rank}.jsonl")) + sorted(folder.glob(f"rank-{rank}-*.jsonl")):
            if file.is_symlink() or not file.is_file():  # whoever made it: a pipe would never end
                continue
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    note = json.loads(line)
                except ValueError:
                    continue
                if isinstance(note, dict) and "kind" in note:
                    notes[rank].append(note)
    return Journals(notes, script)


def unpacked(text: str) -> array[int]:
    """Return the numbers that a journal holds compressed."""
    numbers = array("q")
    numbers.frombytes(zlib.decompress(base64.b64decode(text)))
    return numbers
