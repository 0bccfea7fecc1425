"""The curvature and the sharpness of trained models, as ``curvature.json``, from which the report is drawn.

::

    members[k].hessian      eigenvalues, trace and spectral density, each with its error
    members[k].sharpness    how far the loss rises in several kinds of neighbourhood
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from rueda.records.examined_model import ExaminedModel
from rueda.records.json_record import JsonRecord, Rule, demand
from rueda.records.student import quantile

FEWEST_PROBES = 8
"""the fewest random vectors from which a trace is estimated"""


@dataclass(frozen=True, kw_only=True)
class Eigenvalue:
    """An eigenvalue of the Hessian, computed by the Lanczos method."""

    value: float
    residual: float
    """|Hv - value v| for the computed unit vector v: a true eigenvalue is at most this far away"""
    error: float
    """numerical error, on the given examples: of the first eigenvalue a bound that holds with a probability of 99 %, of
    the others the residual (in older records: the residual, or its square over the gap to the neighbours)"""
    sampling_error: float | None = None
    """standard error that comes from which examples were drawn; None in older records"""

    @property
    def numerical_error(self) -> float:
        """How far a true eigenvalue may be away: the error, and no less than the residual, which older records ignore.

        >>> Eigenvalue(value=4.0, residual=0.01, error=0.0001).numerical_error
        0.01
        """
        return max(self.error, self.residual)


@dataclass(frozen=True, kw_only=True)
class SpectralDensity:
    """The density of all eigenvalues, as a curve with an integral of 1."""

    positions: tuple[float, ...]
    values: tuple[float, ...]
    errors: tuple[float, ...]
    """standard errors of the values"""
    width: float
    """standard deviation of the Gaussian that stands for each eigenvalue"""
    mean: float
    """first moment: the trace over the number of parameters"""
    mean_error: float
    mean_square: float
    """second moment: the squared Frobenius norm over the number of parameters"""
    mean_square_error: float
    negative: float
    """fraction of the eigenvalues that are below zero by more than the width"""
    probes: int
    steps: int
    lows: tuple[float, ...] = ()
    highs: tuple[float, ...] = ()
    """the ends of the 90 % interval of each value, for the random vectors; none in older records"""

    def band(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the ends of the interval of each value; in older records, one standard error to each side."""
        if self.lows:
            return self.lows, self.highs
        pairs = [
            (value, error if math.isfinite(error) else 0.0)
            for value, error in zip(self.values, self.errors, strict=True)
        ]
        return tuple(value - error for value, error in pairs), tuple(value + error for value, error in pairs)


@dataclass(frozen=True, kw_only=True)
class HessianResult:
    """The curvature of the loss at a model's parameters."""

    loss: float
    gradient_norm: float
    examples: int
    parameters: int
    eigenvalues: Annotated[tuple[Eigenvalue, ...], Rule("at least one", bool)]
    """the largest eigenvalues in descending order"""
    converged: bool
    """every numerical error is at most tolerance x value"""
    tolerance: float
    lowest: Eigenvalue
    """the most negative eigenvalue met during the computation; not converged"""
    trace: float | None = None
    trace_error: float | None = None
    """standard error that comes from the random vectors"""
    trace_probes: int | None = None
    """the number of random vectors; 0 if the trace is exact, None in older records"""
    trace_sampling_error: float | None = None
    """standard error that comes from which examples were drawn; None in older records"""
    groups: int | None = None
    """groups of examples from which the sampling errors are estimated"""
    trace_converged: bool | None = None
    density: SpectralDensity | None = None
    products: int = 0
    """number of Hessian-vector products that were computed"""
    batch_norm: str = "none"
    """``running statistics`` if the model, which is in evaluation mode, has batch norm"""
    seed: int = 0
    seconds: float = 0.0

    @property
    def has_converged(self) -> bool:
        """Whether the search converged; of older records, which have no groups, judged anew by the residuals."""
        found = [one.numerical_error <= self.tolerance * abs(one.value) for one in self.eigenvalues]
        return self.converged and (self.groups is not None or all(found))

    @property
    def largest(self) -> float:
        """The top eigenvalue."""
        return self.eigenvalues[0].value

    def sampling_margin(self, error: float | None) -> float | None:
        """Return half the width of the 90 % interval for a standard error that comes from which examples were drawn."""
        return None if error is None or self.groups is None else margin(error, self.groups)

    @property
    def trace_margin(self) -> float | None:
        """Half the width of the 90 % interval of the trace on these examples, of which random vectors are the cause."""
        if self.trace_error is None or self.trace_probes == 0:
            return self.trace_error
        return margin(self.trace_error, self.trace_probes or FEWEST_PROBES)


def margin(standard_error: float, num_samples: int) -> float:
    """Return half the width of the 90 % interval of a mean, by Student's t with ``num_samples`` - 1 degrees of freedom.

    >>> round(margin(1.0, 16), 3), round(margin(1.0, 6), 3), margin(1.0, 1)
    (1.753, 2.015, inf)
    """
    return quantile(num_samples - 1) * standard_error if num_samples > 1 else math.inf


def contraction(rate: float, eigenvalue: float) -> float:
    """Return the factor of the distance to the minimum along an eigenvector of the Hessian in one update.

    >>> contraction(0.01, 50.0)
    0.5
    """
    return 1 - rate * eigenvalue


def largest_stable_rate(largest_eigenvalue: float) -> float | None:
    """Return the rate above which gradient descent diverges on a quadratic, 2 / largest eigenvalue of the Hessian.

    There the :func:`contraction` along the steepest direction is -1, and beyond it the distance grows. None where the
    loss curves upwards in no direction.

    >>> largest_stable_rate(50.0), largest_stable_rate(-1.0)
    (0.04, None)
    """
    return 2 / largest_eigenvalue if largest_eigenvalue > 0 else None


@dataclass(frozen=True, kw_only=True)
class SharpnessMeasure:
    """How far the loss rises within a neighbourhood of the parameters."""

    kind: str
    """``keskar``, ``keskar-subspace``, ``sam`` or ``adaptive``"""
    radius: float
    """epsilon of a box, or rho of a ball"""
    value: float
    """``keskar`` and ``keskar-subspace``: 100 (highest - loss) / (1 + loss); the others: highest - loss"""
    highest: float
    """the highest loss that the search found, a lower bound of the maximum"""
    first_order: float | None = None
    """the loss after one step along the gradient (measures on a ball)"""
    evaluations: int
    """number of evaluations of the loss and its gradient"""
    converged: bool
    """the search converged: the loss rises in no direction within the neighbourhood"""


@dataclass(frozen=True, kw_only=True)
class SharpnessResult:
    """The sharpness of the loss at a model's parameters."""

    loss: float
    examples: int
    parameters: int
    measures: tuple[SharpnessMeasure, ...]
    batch_norm: str = "none"
    seed: int = 0
    seconds: float = 0.0

    def measure(self, kind: str, radius: float | None = None) -> SharpnessMeasure | None:
        """Return the first measure of a kind and, if a radius is given, of that radius; None if there is none."""
        return next((one for one in self.measures if one.kind == kind and radius in (None, one.radius)), None)


@dataclass(frozen=True, kw_only=True)
class ModelCurvature(ExaminedModel):
    """The curvature and sharpness of one trained model."""

    seed: int | None = None
    """the seed of the training"""
    split: str = "train"
    """which examples: ``train`` or ``test``"""
    hessian: HessianResult | None = None
    sharpness: SharpnessResult | None = None
    train_accuracy: float | None = None
    test_accuracy: float | None = None
    weights: str = ""
    """a checksum of the parameters: another one means another model"""


@dataclass(frozen=True, kw_only=True)
class Curvature(JsonRecord):
    """The curvature of one or several trained models of a task."""

    FILE: ClassVar = "curvature.json"
    NOUN: ClassVar = "a curvature"
    COMMAND: ClassVar = "rueda examine"

    task: str
    members: Annotated[tuple[ModelCurvature, ...], Rule("at least one model", bool)]
    kind: str = "curvature"

    def check(self) -> None:
        """Raise ValueError if the lists of a density have different lengths."""
        for member in self.members:
            if member.hessian is not None and (curve := member.hessian.density) is not None:
                lengths = [len(values) for values in (curve.positions, curve.values, curve.errors)]
                lengths += [len(values) for values in (curve.lows, curve.highs) if curve.lows or curve.highs]
                where, expected = "curvature.hessian.density", "as many positions as values and errors"
                demand(len(set(lengths)) == 1 and lengths[0] > 1, where, expected, lengths)
