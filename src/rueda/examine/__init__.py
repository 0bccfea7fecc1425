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
``loading``, ``look``         from a run folder or any checkpoint to all of this
============================  =========================================================================================
"""

from __future__ import annotations

from rueda.examine.curvature.hessian import hessian
from rueda.examine.curvature.sharpness import sharpness
from rueda.examine.landscape.directions import random_direction
from rueda.examine.landscape.grid import Work
from rueda.examine.landscape.interpolation import interpolate
from rueda.examine.landscape.line import lines
from rueda.examine.landscape.look import Look, look_at
from rueda.examine.landscape.path import path_surface
from rueda.examine.landscape.surface import surface
from rueda.examine.loading import load_subject
from rueda.examine.objective.objective import Objective

__all__ = [
    "Look",
    "Objective",
    "Work",
    "hessian",
    "interpolate",
    "lines",
    "load_subject",
    "look_at",
    "path_surface",
    "random_direction",
    "sharpness",
    "surface",
]
