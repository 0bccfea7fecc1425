"""What was trained, looked at: the landscape around it, its sharpness, its curvature.

Everything works on any model, loss and loader::

    from rueda.examine import Objective, surface, lines, hessian, sharpness

    objective = Objective.from_loader(model, nn.CrossEntropyLoss(), loader)
    surface({"train": objective}, seed=0).sheets[0].loss

============================  =========================================================================================
``objective``, ``borrow``     the mean loss as a function of the parameters; the model comes back bit for bit
``directions``                random directions, filter-normalised
``surface``, ``line``         values over a plane and along lines
``interpolation``, ``path``   from one model to another; the training path in the plane in which it moved most
``grid``                      points spread over workers, kept as they come
``hessian``                   top eigenvalues, trace and spectral density, each with its error
``sharpness``                 how far the loss rises nearby
``loading``, ``pictures``     from a run folder or any checkpoint to all of this; ``job`` is ``rueda examine``
============================  =========================================================================================

Importing the package loads no torch; its names do, when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rueda.lazy import lazily

if TYPE_CHECKING:
    from rueda.examine.curvature.hessian import hessian
    from rueda.examine.curvature.sharpness import sharpness
    from rueda.examine.landscape.directions import random_direction
    from rueda.examine.landscape.grid import Execution
    from rueda.examine.landscape.interpolation import interpolate
    from rueda.examine.landscape.line import lines
    from rueda.examine.landscape.path import path_surface
    from rueda.examine.landscape.pictures import compute_pictures
    from rueda.examine.landscape.surface import surface
    from rueda.examine.loading import load_subject
    from rueda.examine.objective.objective import Objective
    from rueda.examine.request import LandscapeRequest

_HOMES = {
    "Execution": "landscape.grid",
    "LandscapeRequest": "request",
    "Objective": "objective.objective",
    "compute_pictures": "landscape.pictures",
    "hessian": "curvature.hessian",
    "interpolate": "landscape.interpolation",
    "lines": "landscape.line",
    "load_subject": "loading",
    "path_surface": "landscape.path",
    "random_direction": "landscape.directions",
    "sharpness": "curvature.sharpness",
    "surface": "landscape.surface",
}

__all__ = [
    "Execution",
    "LandscapeRequest",
    "Objective",
    "compute_pictures",
    "hessian",
    "interpolate",
    "lines",
    "load_subject",
    "path_surface",
    "random_direction",
    "sharpness",
    "surface",
]

__getattr__ = lazily(__name__, _HOMES)
