"""Examine trained models: the loss landscape around them, their sharpness, their curvature.

Everything works on any model, loss and loader::

    from rueda.examine import Objective, surface, lines, hessian, sharpness

    objective = Objective.from_loader(model, nn.CrossEntropyLoss(), loader)
    surface({"train": objective}, seed=0).sheets[0].loss

============================  =========================================================================================
``objective``                 the mean loss as a function of the parameters; the model is restored bit for bit
``directions``                random directions, filter-normalised
``surface``, ``line``         values over a plane and along lines
``interpolation``, ``path``   from one model to another; the training path in the plane in which it moved most
``grid``                      points distributed over workers, saved as they are computed
``hessian``                   top eigenvalues, trace and spectral density, each with its error
``sharpness``                 how far the loss rises in a neighbourhood
``loading``, ``pictures``     load a run or a checkpoint, and compute its pictures; ``job`` is ``rueda examine``
============================  =========================================================================================

Importing the package loads no torch; its names do, when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rueda.lazy import lazily

if TYPE_CHECKING:
    from rueda.examine.curvature.hessian import hessian as hessian
    from rueda.examine.curvature.sharpness import sharpness as sharpness
    from rueda.examine.landscape.directions import random_direction as random_direction
    from rueda.examine.landscape.grid import Execution as Execution
    from rueda.examine.landscape.interpolation import interpolate as interpolate
    from rueda.examine.landscape.line import lines as lines
    from rueda.examine.landscape.path import path_surface as path_surface
    from rueda.examine.landscape.pictures import compute_pictures as compute_pictures
    from rueda.examine.landscape.surface import surface as surface
    from rueda.examine.loading import load_model as load_model
    from rueda.examine.objective.objective import Objective as Objective
    from rueda.examine.request import LandscapeRequest as LandscapeRequest

_HOMES = {
    "Execution": "landscape.grid",
    "LandscapeRequest": "request",
    "Objective": "objective.objective",
    "compute_pictures": "landscape.pictures",
    "hessian": "curvature.hessian",
    "interpolate": "landscape.interpolation",
    "lines": "landscape.line",
    "load_model": "loading",
    "path_surface": "landscape.path",
    "random_direction": "landscape.directions",
    "sharpness": "curvature.sharpness",
    "surface": "landscape.surface",
}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
