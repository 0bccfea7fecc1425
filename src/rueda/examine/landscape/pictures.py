"""Compute the requested pictures of a model's landscape: surface, path, lines, interpolation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from rueda.errors import ExamineError
from rueda.examine.landscape.grid import Execution, Objectives, axis
from rueda.examine.landscape.interpolation import interpolate
from rueda.examine.landscape.line import lines
from rueda.examine.landscape.path import path_surface
from rueda.examine.landscape.surface import surface
from rueda.examine.loading import TrainedModel, build_model, load_path
from rueda.examine.objective.examples import Inputs
from rueda.examine.objective.objective import Objective, checksum
from rueda.examine.request import LandscapeRequest
from rueda.nn.convert import BatchNorm
from rueda.records.landscape import PICTURES, ModelLandscape


def compute_pictures(
    trained: TrainedModel,
    objectives: Objectives,
    request: LandscapeRequest,
    *,
    other: TrainedModel | None = None,
    execution: Execution | None = None,
) -> ModelLandscape:
    """Compute the pictures of one model; all workers must call it.

    Args:
        trained: the model.
        objectives: its loss on each split (:meth:`TrainedModel.objectives`).
        request: what is wanted.
        other: the model at which an interpolation ends.
        execution: which workers compute; points are saved in its folder until all pictures are complete.
    """
    execution = execution or Execution()
    first = next(iter(objectives.values()))
    found: dict[str, Any] = {}
    for name in (picture for picture in PICTURES if picture in request.pictures):
        own = replace(execution, folder=None if execution.folder is None else execution.folder / name)
        calibration = _calibration(name, request, objectives)
        side = axis(-request.span, request.span, request.points or 51)
        shared: dict[str, Any] = {"recalibrate_on": calibration, "execution": own}
        random: dict[str, Any] = {"seed": request.seed, "normalise": request.normalise, **shared}
        if name == "surface":
            found[name] = surface(objectives, x=side, y=side, **random)
        elif name == "lines":
            found[name] = lines(objectives, alphas=side, num_directions=request.num_lines, **random)
        elif name == "path":
            found[name] = _path(trained, objectives, request, shared)
        else:
            if other is None:
                raise ExamineError("an interpolation goes from one model to another; name two runs or checkpoints")
            alphas = axis(-1.0, 2.0, request.points or 25)
            names = (trained.name, other.name)
            found[name] = interpolate(objectives, other.model.state_dict(), names=names, alphas=alphas, **shared)
    return ModelLandscape(
        name=trained.name,
        weights=checksum(first.origin),
        num_parameters=first.num_parameters,
        num_examples=first.num_examples,
        step=trained.step,
        workers=trained.workers,
        rehearsed=trained.rehearsed,
        **found,
    )


def _calibration(picture: str, request: LandscapeRequest, objectives: Objectives) -> Inputs | None:
    first = next(iter(objectives.values()))
    if not any(isinstance(module, BatchNorm) and module.running_mean is not None for module in first.model.modules()):
        return None
    far = picture in ("path", "interpolation")
    if request.batch_norm == "running" or (request.batch_norm == "auto" and not far):
        return None
    if "train" not in objectives:
        raise ExamineError("batch-norm statistics are recalibrated on training examples; add train to the splits")
    return objectives["train"].inputs


def _path(trained: TrainedModel, objectives: Objectives, request: LandscapeRequest, shared: dict[str, Any]) -> Any:
    steps, states = load_path(trained)
    first = next(iter(objectives.values()))
    checkpoints = [[state[name] for name in first.names] for state in states]
    losses = [_loss_of(trained, state, first) for state in states]
    return path_surface(
        objectives, checkpoints, steps, num_points=request.points or 51, loss=losses, rebuilt_start=True, **shared
    )


def _loss_of(trained: TrainedModel, state: Mapping[str, Tensor], like: Objective) -> float:
    """Return the training loss of a checkpoint with its own batch-norm statistics."""
    model = build_model(trained.task, trained.recipe)
    model.load_state_dict(dict(state))
    try:
        losses = trained.task.losses
        return Objective(model, losses, like.inputs, like.targets, chunk=like.chunk, device=like.device).value()
    except ExamineError:  # NaN weights: it diverged there
        return float("nan")
