"""Schedules: functions from step to value that can be combined and printed. They do not need torch.

>>> schedule = GradualWarmup(0.1, 0.8, 500).then(Step(0.8, milestones=(3000, 6000), factor=0.1))
>>> schedule
from 0.1 linearly to 0.8 over 500 steps, then 0.8, times 0.1 at steps 3000 and 6000
>>> [round(schedule(step), 3) for step in (0, 250, 500, 2999, 3000, 6000)]
[0.1, 0.45, 0.8, 0.8, 0.08, 0.008]

A step is the number of an update, from 0. It may be fractional: AdaScale advances the schedule by its gain, which is
not an integer. Multiply epochs by the steps per epoch first. `rueda.optim.adapters` makes a torch
scheduler, `rueda.keras` a Keras one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from rueda.errors import RecipeError


class Schedule(ABC):
    """A function from step to value, whose ``repr`` describes it in words."""

    def __post_init__(self) -> None:
        length = getattr(self, "num_steps", None)
        if length is not None and not length > 0:
            raise RecipeError("num_steps", expected="more than 0", got=length, do="give its length in steps")

    @abstractmethod
    def __call__(self, step: float) -> float:
        """Return the value at a step."""

    @abstractmethod
    def __repr__(self) -> str: ...

    def values(self, num_steps: int) -> list[float]:
        """Return the values at steps 0 to ``num_steps - 1``, for a plot or a table."""
        return [self(step) for step in range(num_steps)]

    def then(self, schedule: Schedule, *, restart: bool = False) -> Then:
        """Return this schedule followed by another one; this one must have a length.

        Args:
            schedule: the schedule that follows.
            restart: count its steps from its own start; otherwise from the start of the training, as in Goyal et al.
                2017, where the warm-up replaces the beginning of the original schedule.
        """
        if not hasattr(self, "num_steps"):
            raise RecipeError(
                "then", expected="a first schedule with an end", got=repr(self), do="begin with a warm-up"
            )
        return Then(self, schedule, restart)


@dataclass(frozen=True, repr=False)
class Constant(Schedule):
    """The same value at every step.

    >>> Constant(0.1)(1000)
    0.1
    """

    value: float

    def __call__(self, step: float) -> float:
        """Return the value."""
        return self.value

    def __repr__(self) -> str:
        return f"{self.value:g}"


@dataclass(frozen=True, repr=False)
class GradualWarmup(Schedule):
    """A linear warm-up from one value to another (Goyal et al. 2017: from eta to k eta in 5 epochs).

    Start at 0 for a warm-up from zero.

    >>> GradualWarmup(0.1, 3.2, 100).values(3)
    [0.1, 0.131, 0.162]
    """

    start: float
    end: float
    num_steps: float

    def __call__(self, step: float) -> float:
        """Return the value; it stays constant after the last step."""
        if step >= self.num_steps:
            return self.end
        return self.start + (self.end - self.start) * (max(0.0, step) / self.num_steps)

    def __repr__(self) -> str:
        return f"from {self.start:g} linearly to {self.end:g} over {self.num_steps:g} steps"


@dataclass(frozen=True, repr=False)
class ConstantWarmup(Schedule):
    """A constant low value for a number of steps; the schedule that follows starts with a jump.

    >>> ConstantWarmup(0.1, 2).then(Constant(0.8)).values(4)
    [0.1, 0.1, 0.8, 0.8]
    """

    value: float
    num_steps: float

    def __call__(self, step: float) -> float:
        """Return the value."""
        return self.value

    def __repr__(self) -> str:
        return f"{self.value:g} for {self.num_steps:g} steps"


@dataclass(frozen=True, repr=False)
class Step(Schedule):
    """A base value that is multiplied by a factor at each milestone.

    >>> [round(Step(0.1, milestones=(30, 60))(step), 4) for step in (29, 30, 60)]
    [0.1, 0.01, 0.001]
    """

    base: float
    milestones: tuple[float, ...]
    factor: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "milestones", tuple(self.milestones))
        if any(later <= earlier for earlier, later in zip(self.milestones, self.milestones[1:], strict=False)):
            raise RecipeError("milestones", expected="rising steps", got=self.milestones, do="sort them")

    def __call__(self, step: float) -> float:
        """Return base x factor^(milestones reached)."""
        return self.base * self.factor ** sum(step >= milestone for milestone in self.milestones)

    def __repr__(self) -> str:
        if not self.milestones:
            return f"{self.base:g}"
        *others, last = (f"{milestone:g}" for milestone in self.milestones)
        listed = f"steps {', '.join(others)} and {last}" if others else f"step {last}"
        return f"{self.base:g}, times {self.factor:g} at {listed}"


@dataclass(frozen=True, repr=False)
class Polynomial(Schedule):
    """A decay from base to end as (1 - step/num_steps)^power: linear for power 1, the poly-2 decay of LARS for 2.

    >>> Polynomial(0.8, num_steps=100, power=2)(50)
    0.2
    """

    base: float
    num_steps: float
    power: float = 2.0
    end: float = 0.0

    def __call__(self, step: float) -> float:
        """Return the value; it stays constant after the last step."""
        left = 1.0 - min(max(0.0, step) / self.num_steps, 1.0)
        return self.end + (self.base - self.end) * math.pow(left, self.power)

    def __repr__(self) -> str:
        shape = "linearly" if self.power == 1 else f"by power {self.power:g}"
        return f"from {self.base:g} {shape} to {self.end:g} over {self.num_steps:g} steps"


@dataclass(frozen=True, repr=False)
class Cosine(Schedule):
    """A decay from base to end along half a cosine (Loshchilov and Hutter 2016, 1608.03983).

    >>> round(Cosine(0.8, num_steps=100)(50), 6)
    0.4
    """

    base: float
    num_steps: float
    end: float = 0.0

    def __call__(self, step: float) -> float:
        """Return end + (base - end) (1 + cos(pi step/num_steps)) / 2."""
        return _half_cosine(self.base, self.end, step / self.num_steps)

    def __repr__(self) -> str:
        return f"from {self.base:g} by half a cosine to {self.end:g} over {self.num_steps:g} steps"


@dataclass(frozen=True, repr=False)
class OneCycle(Schedule):
    """The one-cycle policy (Smith and Topin 2017, 1708.07120), with torch's defaults and step numbers.

    The value rises from peak/start_divisor to the peak during the fraction `rising` of the steps, then falls to
    peak/(start_divisor end_divisor) at the last step, num_steps - 1.

    >>> cycle = OneCycle(1.0, num_steps=101, rising=0.5)
    >>> [round(cycle(step), 4) for step in (0, 49.5, 100)]
    [0.04, 1.0, 0.0]
    """

    peak: float
    num_steps: float
    rising: float = 0.3
    start_divisor: float = 25.0
    end_divisor: float = 1e4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.rising < 1:
            raise RecipeError("rising", expected="a fraction between 0 and 1", got=self.rising, do="use 0.3")

    def __call__(self, step: float) -> float:
        """Return the value; both halves are half cosines."""
        start = self.peak / self.start_divisor
        top, last = self.rising * self.num_steps - 1, self.num_steps - 1
        if step <= top:
            return _half_cosine(start, self.peak, step / top if top > 0 else 1.0)
        return _half_cosine(self.peak, start / self.end_divisor, (step - top) / (last - top))

    def __repr__(self) -> str:
        return f"one cycle of {self.num_steps:g} steps with its peak of {self.peak:g} at {self.rising:.0%}"


@dataclass(frozen=True, repr=False)
class Then(Schedule):
    """Two schedules, one after the other; `Schedule.then` makes it.

    >>> GradualWarmup(0.0, 1.0, 10).then(Cosine(1.0, 90), restart=True)
    from 0 linearly to 1 over 10 steps, then from 1 by half a cosine to 0 over 90 steps
    """

    first: Schedule
    second: Schedule
    restart: bool = False

    @property
    def start(self) -> float:
        """The step at which the second schedule begins."""
        return float(self.first.num_steps)  # type: ignore[attr-defined]

    def __call__(self, step: float) -> float:
        """Return the value of the first schedule until its end, then that of the second."""
        if step < self.start:
            return self.first(step)
        return self.second(step - self.start if self.restart else step)

    def __repr__(self) -> str:
        return f"{self.first!r}, then {self.second!r}"


def assemble(
    *,
    base_rate: float,
    peak_rate: float,
    num_steps: float,
    warmup: str = "gradual",
    warmup_steps: float = 0.0,
    schedule: str = "constant",
    milestones: tuple[float, ...] = (),
    decay: float = 0.1,
    power: float = 2.0,
    final: float = 0.0,
) -> Schedule:
    """Build the schedule of a whole training from the fields of a recipe; all lengths are in steps.

    Milestones of `step` count from the start of the training. Polynomial and cosine start at the end of the warm-up and
    end with the training.

    Args:
        base_rate: the rate of the base batch, at which a gradual or constant warm-up starts.
        peak_rate: the scaled rate, at which the warm-up ends.
        num_steps: steps of the training.
        warmup: gradual, constant or from-zero.
        warmup_steps: steps of the warm-up; 0 for none.
        schedule: constant, step, polynomial, cosine or one-cycle.
        milestones, decay: milestones and factor of step.
        power: exponent of polynomial.
        final: final value of polynomial and cosine, as a fraction of the peak.

    >>> assemble(base_rate=0.1, peak_rate=0.8, num_steps=900, warmup_steps=50, schedule="step", milestones=(300, 600))
    from 0.1 linearly to 0.8 over 50 steps, then 0.8, times 0.1 at steps 300 and 600
    >>> assemble(base_rate=0.1, peak_rate=0.8, num_steps=900, warmup="from-zero", warmup_steps=50, schedule="cosine")
    from 0 linearly to 0.8 over 50 steps, then from 0.8 by half a cosine to 0 over 850 steps
    """
    if warmup_steps > num_steps:
        raise RecipeError(
            "warm-up", expected=f"at most the {num_steps:g} steps of the training", got=warmup_steps, do="lower it"
        )
    rest = max(num_steps - warmup_steps, 1.0)
    main: dict[str, Schedule] = {
        "constant": Constant(peak_rate),
        "step": Step(peak_rate, milestones, decay),
        "polynomial": Polynomial(peak_rate, rest, power, final * peak_rate),
        "cosine": Cosine(peak_rate, rest, final * peak_rate),
        "one-cycle": OneCycle(peak_rate, rest),
    }
    if schedule not in main:
        raise RecipeError("schedule", expected=f"one of {', '.join(main)}", got=schedule, do="choose one")
    if warmup_steps == 0:
        return main[schedule]
    first: dict[str, Schedule] = {
        "gradual": GradualWarmup(base_rate, peak_rate, warmup_steps),
        "constant": ConstantWarmup(base_rate, warmup_steps),
        "from-zero": GradualWarmup(0.0, peak_rate, warmup_steps),
    }
    if warmup not in first:
        raise RecipeError("warmup", expected=f"one of {', '.join(first)}", got=warmup, do="choose one")
    return first[warmup].then(main[schedule], restart=schedule != "step")


def _half_cosine(start: float, end: float, fraction: float) -> float:
    fraction = min(max(0.0, fraction), 1.0)
    return end + (start - end) * (1.0 + math.cos(math.pi * fraction)) / 2.0
