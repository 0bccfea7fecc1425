"""What a record states about a metric: name, direction, how it is written, and when a worse value is tolerated.

The functions that compute metrics are in :mod:`rueda.tasks.metrics`; a record needs none of them to be read.
"""

from __future__ import annotations

from dataclasses import dataclass

TOLERANCE = 0.01
"""how much worse a metric may be than one worker's and still count as kept, unless a task or an option says another"""


@dataclass(frozen=True, kw_only=True)
class MetricInfo:
    """The name of a metric, its direction, and whether it is a fraction that is written in percent."""

    name: str
    higher_is_better: bool = True
    percent: bool = False
    """the values are fractions, written in percent; a difference of two is written in points"""

    def score(self, value: float) -> float:
        """Return a number that is higher where the value is better: the value, or its negative.

        >>> ACCURACY.score(0.9), LOSS.score(2.5)
        (0.9, -2.5)
        """
        return value if self.higher_is_better else -value

    def reaches(self, value: float | None, target: float) -> bool:
        """Tell whether a value is as good as a target, or better.

        >>> ACCURACY.reaches(0.9, 0.85), LOSS.reaches(2.5, 2.0), LOSS.reaches(None, 2.0)
        (True, False, False)
        """
        return value is not None and self.score(value) >= self.score(target)

    def change(self, value: float | None, base: float | None) -> float | None:
        """Return the difference from a base: in points for a fraction, otherwise in percent of the base.

        >>> ACCURACY.change(0.726, 0.913), LOSS.change(2.2, 2.0), LOSS.change(2.2, 0.0)
        (-18.7, 10.0, None)
        """
        if value is None or base is None:
            return None
        if self.percent:
            return round(100 * (value - base), 6)
        return round(100 * (value - base) / abs(base), 6) if base else None

    def judge(self, interval: tuple[float, float] | None, tolerance: float) -> str:
        """Say whether a change is no worse than the tolerance: 0.01 is one point, or one percent of the base.

        Args:
            interval: the interval of the change; None: nothing is known about its error.
            tolerance: how much worse is still kept.

        Returns:
            ``kept`` if the whole interval is within the tolerance, ``lost`` if all of it is worse, else ``undecided``.

        >>> [ACCURACY.judge(one, 0.01) for one in ((-0.9, 0.3), (-3.0, -1.1), (-1.4, 0.6), None)]
        ['kept', 'lost', 'undecided', 'undecided']
        >>> LOSS.judge((-9.0, 0.5), 0.01), LOSS.judge((1.5, 9.0), 0.01)
        ('kept', 'lost')
        """
        if interval is None:
            return "undecided"
        worst, best = sorted(map(self.score, interval))
        limit = -100 * tolerance
        return "kept" if worst >= limit else "lost" if best < limit else "undecided"


ACCURACY = MetricInfo(name="accuracy", percent=True)
LOSS = MetricInfo(name="loss", higher_is_better=False)
