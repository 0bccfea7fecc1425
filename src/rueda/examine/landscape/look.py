"""A look at a trained model: the pictures of its landscape that were asked for; the twin of ``rueda examine``."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from rueda.errors import ExamineError, explain
from rueda.examine.landscape.directions import NORMALISATIONS
from rueda.examine.landscape.grid import Objectives, Work, axis
from rueda.examine.landscape.interpolation import interpolate
from rueda.examine.landscape.line import lines
from rueda.examine.landscape.path import path_surface
from rueda.examine.landscape.surface import surface
from rueda.examine.loading import Subject, build_model, load_path
from rueda.examine.objective.examples import Inputs
from rueda.examine.objective.objective import Objective, checksum
from rueda.nn.convert import BatchNorm
from rueda.records.landscape import PICTURES, Member

BATCH_NORM = ("auto", "running", "recalibrate")


@dataclass(frozen=True, kw_only=True)
class Look:
    """What to look at, and how closely."""

    pictures: Collection[str] = ("surface",)
    """among ``surface``, ``path``, ``lines`` and ``interpolation``"""
    points: int | None = None
    """of each axis; by default 51, and 25 for an interpolation"""
    span: float = 1.0
    """surface and lines reach from -span to span"""
    num_lines: int = 1
    seed: int = 0
    """of the random directions"""
    normalise: str = "filter"
    batch_norm: str = "auto"
    """``running``: the model's own statistics at every point (interpolation: interpolated); ``recalibrate``: recomputed
    at every point over the training examples; ``auto``: as the papers do, running for surface and lines, recalibrated
    for path and interpolation, where the weights go far"""

    def __post_init__(self) -> None:
        unknown = [name for name in self.pictures if name not in PICTURES]
        rules = {
            "pictures": (not unknown, f"some of {', '.join(PICTURES)}", unknown),
            "points": (self.points is None or self.points >= 2, "2 or more", self.points),
            "span": (0 < self.span < float("inf"), "a number above 0", self.span),
            "lines": (self.num_lines >= 1, "1 or more", self.num_lines),
            "normalise": (self.normalise in NORMALISATIONS, f"one of {', '.join(NORMALISATIONS)}", self.normalise),
            "batch_norm": (self.batch_norm in BATCH_NORM, f"one of {', '.join(BATCH_NORM)}", self.batch_norm),
        }
        for name, (holds, expected, got) in rules.items():
            if not holds:
                raise ExamineError(explain(name, expected=expected, got=got, do="correct it"))

    def num_points(self) -> int:
        """Count the points of all pictures."""
        side = self.points or 51
        counts = {
            "surface": side * side,
            "path": side * side,
            "lines": side * self.num_lines,
            "interpolation": self.points or 25,
        }
        return sum(counts[name] for name in self.pictures)


def look_at(
    subject: Subject, objectives: Objectives, look: Look, *, other: Subject | None = None, work: Work | None = None
) -> Member:
    """Compute the pictures of one model; all workers must call it.

    Args:
        subject: the model.
        objectives: its loss on each split (:meth:`Subject.objectives`).
        look: what is wanted.
        other: where an interpolation ends.
        work: who computes; points are kept in ``work.folder`` until all pictures are there.
    """
    work = work or Work()
    first = next(iter(objectives.values()))
    found: dict[str, Any] = {}
    for name in (picture for picture in PICTURES if picture in look.pictures):
        place = replace(work, folder=None if work.folder is None else work.folder / name)
        calibration = _calibration(name, look, objectives)
        side = axis(-look.span, look.span, look.points or 51)
        shared: dict[str, Any] = {"recalibrate_on": calibration, "work": place}
        random: dict[str, Any] = {"seed": look.seed, "normalise": look.normalise, **shared}
        if name == "surface":
            found[name] = surface(objectives, x=side, y=side, **random)
        elif name == "lines":
            found[name] = lines(objectives, alphas=side, num_directions=look.num_lines, **random)
        elif name == "path":
            found[name] = _path(subject, objectives, look, shared)
        else:
            if other is None:
                raise ExamineError("an interpolation goes from one model to another; name two runs or checkpoints")
            alphas = axis(-1.0, 2.0, look.points or 25)
            names = (subject.name, other.name)
            found[name] = interpolate(objectives, other.model.state_dict(), names=names, alphas=alphas, **shared)
    return Member(
        name=subject.name,
        weights=checksum(first.origin),
        num_parameters=first.num_parameters,
        num_examples=first.num_examples,
        step=subject.step,
        workers=subject.workers,
        rehearsed=subject.rehearsed,
        **found,
    )


def forget_points(folder: Path) -> None:
    """Remove the kept points, once the record that they went into is written."""
    shutil.rmtree(folder, ignore_errors=True)


def _calibration(picture: str, look: Look, objectives: Objectives) -> Inputs | None:
    first = next(iter(objectives.values()))
    if not any(isinstance(module, BatchNorm) and module.running_mean is not None for module in first.model.modules()):
        return None
    far = picture in ("path", "interpolation")
    if look.batch_norm == "running" or (look.batch_norm == "auto" and not far):
        return None
    if "train" not in objectives:
        raise ExamineError("batch-norm statistics are recalibrated on training examples; ask for the split train, too")
    return objectives["train"].inputs


def _path(subject: Subject, objectives: Objectives, look: Look, shared: dict[str, Any]) -> Any:
    steps, states, rebuilt = load_path(subject)
    first = next(iter(objectives.values()))
    checkpoints = [[state[name] for name in first.names] for state in states]
    losses = [_loss_of(subject, state, first) for state in states]
    return path_surface(
        objectives, checkpoints, steps, num_points=look.points or 51, loss=losses, rebuilt_start=rebuilt, **shared
    )


def _loss_of(subject: Subject, state: Mapping[str, Tensor], like: Objective) -> float:
    """Give the loss of a checkpoint with its own batch-norm statistics."""
    model = build_model(subject.task, subject.recipe)
    model.load_state_dict(dict(state))
    try:
        on_it = Objective(
            model, subject.task.losses, like.inputs, like.targets, chunk=like.chunk, device=like.device
        )  # fmt: skip
    except ExamineError:  # NaN weights: it diverged there
        return float("nan")
    return on_it.value()
