"""The plan: what a cluster would do with a task, as ``plan.json``. The report reads it; ``rueda plan`` writes it.

::

    plan.json       rows (workers x local batch), the recommended one, advice, warnings, what is not known
    planned.toml    the recipe, for `rueda train --recipe`
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rueda.errors import ProfileError
from rueda.records.files import plain, write_atomically
from rueda.records.profile import read_record

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class PlanNoise:
    """The gradient noise scale that a plan uses, and where in the training it was measured."""

    value: float
    """in examples: the critical batch size, about; the latest measured"""
    first: float
    """the earliest measured"""
    low: float | None
    high: float | None
    step: int
    epochs: float
    source: str


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One number of workers at one local batch."""

    workers: int
    nodes: int
    scaling: str
    """weak: one worker's local batch; strong: one worker's global batch; other: neither"""
    local_batch: int
    global_batch: int
    step_seconds: float
    compute_seconds: float
    sync_seconds: float
    exposed_seconds: float
    straggler_seconds: float
    images_per_second: float
    efficiency: float
    """images/s a worker, against one worker alone at this local batch"""
    speedup: float
    """images/s against one worker at the base batch"""
    statistical_efficiency: float | None
    """what an example is worth, against the base batch; None: no noise scale"""
    goodput: float | None
    """images/s x statistical efficiency"""
    updates: float
    """to where one worker comes"""
    epochs: float
    """the same, in passes over the data"""
    hours: float
    money: float | None
    """hours x nodes x price"""
    best: bool = False
    """the best local batch for this number of workers"""
    recommended: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def progress(self) -> float:
        """Images a second that count."""
        return self.images_per_second if self.goodput is None else self.goodput


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What ``rueda plan`` found."""

    task: str
    device: str
    cluster: str
    cluster_title: str
    examples: int
    base_batch: int
    """of one worker's training, which the plan shall equal"""
    base_rate: float
    base_epochs: int
    noise: PlanNoise | None
    rows: tuple[PlanRow, ...]
    currency: str | None = None
    """of the money, where there is a price"""
    advice: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """what the plan does not know"""
    sources: tuple[str, ...] = ()
    recipe: str = ""
    """the planned recipe, as TOML"""
    command: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    kind: str = "plan"
    format: int = FORMAT

    @property
    def chosen(self) -> PlanRow:
        """The recommended row."""
        return next(row for row in self.rows if row.recommended)

    def best(self) -> list[PlanRow]:
        """Give the best row of each number of workers, fewest first."""
        return sorted((row for row in self.rows if row.best), key=lambda row: row.workers)

    def to_json(self) -> str:
        """Write strict JSON: NaN and infinity become null."""
        return json.dumps(plain(asdict(self)), indent=1)

    @classmethod
    def from_json(cls, text: str, *, source: str = "plan.json") -> Plan:
        """Read a plan; a broken one is refused in one line."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ProfileError(f"{source}: expected JSON, got: {error}; plan again with `rueda plan`") from None
        if not isinstance(data, dict) or data.get("kind") != "plan":
            raise ProfileError(f"{source}: expected a plan with its rows; make one with `rueda plan`")
        if data.get("format") != FORMAT:
            raise ProfileError(f"{source}: expected format {FORMAT}, got {data.get('format')!r}; use a newer Rueda")
        try:
            plan = read_record(cls, data, "plan")
        except (TypeError, ValueError) as error:
            raise ProfileError(f"{source}: {error}; plan again with `rueda plan`") from None
        if sum(row.recommended for row in plan.rows) != 1:
            raise ProfileError(f"{source}: expected one recommended row; plan again with `rueda plan`")
        return plan

    @classmethod
    def load(cls, file: Path | str) -> Plan:
        """Read ``plan.json``, or that of a folder."""
        file = Path(file) / "plan.json" if Path(file).is_dir() else Path(file)
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ProfileError(f"{file}: expected a plan, got: {error}; make one with `rueda plan`") from None
        return cls.from_json(text, source=str(file))

    def save(self, file: Path) -> None:
        """Write the file, whole or not at all."""
        write_atomically(file, (self.to_json() + "\n").encode())
