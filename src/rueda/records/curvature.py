"""What was found about the curvature and the sharpness of trained models, as ``curvature.json``.

::

    members[k].hessian      eigenvalues, trace and spectral density, each with its error
    members[k].sharpness    how far the loss rises nearby, by several measures of nearby

A report reads this file, and nothing else is kept in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from rueda.records.json_record import FORMAT, JsonRecord

FILE = "curvature.json"


@dataclass(frozen=True, kw_only=True)
class Eigenvalue:
    """An eigenvalue of the Hessian, as Lanczos found it."""

    value: float
    residual: float
    """|Hv - value v| for the unit vector v that was found: a true eigenvalue lies within"""
    error: float
    """estimated distance to it: the residual, or its square over the gap to the neighbours"""


@dataclass(frozen=True, kw_only=True)
class SpectralDensity:
    """The spread of all eigenvalues, as a curve that encloses the area 1."""

    positions: tuple[float, ...]
    values: tuple[float, ...]
    errors: tuple[float, ...]
    """standard errors of the values"""
    width: float
    """standard deviation of the Gaussians that the eigenvalues are drawn as"""
    mean: float
    """first moment: the trace over the number of parameters"""
    mean_error: float
    mean_square: float
    """second moment: the squared Frobenius norm over the number of parameters"""
    mean_square_error: float
    negative: float
    """share of the eigenvalues clearly below zero (by more than the width)"""
    probes: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class HessianFound:
    """The curvature at a point."""

    loss: float
    gradient_norm: float
    examples: int
    parameters: int
    eigenvalues: tuple[Eigenvalue, ...]
    """the largest ones, the largest first"""
    converged: bool
    """every error is at most tolerance x value, and every residual at most three times that"""
    tolerance: float
    lowest: Eigenvalue
    """the most negative value seen on the way, not driven to convergence"""
    trace: float | None = None
    trace_error: float | None = None
    """standard error"""
    trace_converged: bool | None = None
    density: SpectralDensity | None = None
    products: int = 0
    """Hessian-vector products that it took"""
    batch_norm: str = "none"
    """``running statistics`` where the model has batch norm: it was in evaluation mode"""
    seed: int = 0
    seconds: float = 0.0

    @property
    def largest(self) -> float:
        """The top eigenvalue."""
        return self.eigenvalues[0].value


@dataclass(frozen=True, kw_only=True)
class SharpnessMeasure:
    """How far the loss rises within some neighbourhood."""

    kind: str
    """``keskar``, ``keskar-subspace``, ``sam`` or ``adaptive``"""
    radius: float
    """epsilon of the box, or rho of the ball"""
    value: float
    """Keskar: 100 (highest - loss) / (1 + loss); the others: highest - loss"""
    highest: float
    """the highest loss that was found; the true maximum is at least this"""
    first_order: float | None = None
    """highest after one step along the gradient (the ball measures)"""
    evaluations: int
    """losses with gradient that it took"""
    converged: bool
    """the search ended by itself: no direction rises any more within the neighbourhood"""


@dataclass(frozen=True, kw_only=True)
class SharpnessFound:
    """The sharpness at a point."""

    loss: float
    examples: int
    parameters: int
    measures: tuple[SharpnessMeasure, ...]
    batch_norm: str = "none"
    seed: int = 0
    seconds: float = 0.0

    def measure(self, kind: str, radius: float | None = None) -> SharpnessMeasure | None:
        """Find a measure by its kind, the first or that of a radius."""
        return next((one for one in self.measures if one.kind == kind and radius in (None, one.radius)), None)


@dataclass(frozen=True, kw_only=True)
class Member:
    """One trained model, examined."""

    name: str
    """what reports call it: the run's name, or a condition; models of one name and several seeds are shown as one"""
    seed: int | None = None
    """of its training"""
    split: str = "train"
    """which examples: ``train`` or ``test``"""
    hessian: HessianFound | None = None
    sharpness: SharpnessFound | None = None
    train_accuracy: float | None = None
    test_accuracy: float | None = None
    weights: str = ""
    """a fingerprint of the parameters: another one means another model"""
    workers: int | None = None
    """with which it was trained; None: not known (an older file, a checkpoint without its run)"""
    rehearsed: bool | None = None
    """those workers were virtual, in one process; None: not known"""


@dataclass(frozen=True, kw_only=True)
class Curvature(JsonRecord):
    """One or several trained models of a task, examined and put side by side."""

    FILE: ClassVar = FILE
    NOUN: ClassVar = "a curvature"
    COMMAND: ClassVar = "rueda examine"

    task: str
    members: tuple[Member, ...]
    environment: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    kind: str = "curvature"
    format: int = FORMAT

    def check(self) -> None:
        """Refuse what would fail later, far from the file."""
        if not self.members:
            raise ValueError("curvature.members: expected at least one model, got none")
        for member in self.members:
            if member.hessian is not None:
                if not member.hessian.eigenvalues:
                    raise ValueError("curvature.hessian.eigenvalues: expected at least one, got none")
                curve = member.hessian.density
                if curve is not None and not len(curve.positions) == len(curve.values) == len(curve.errors) > 1:
                    raise ValueError("curvature.hessian.density: expected as many positions as values and errors")
