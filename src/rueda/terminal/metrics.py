"""How the values of metrics are written: fractions in percent, other numbers with four significant digits."""

from __future__ import annotations

from rueda.records.metric import MetricInfo
from rueda.terminal.numbers import NONE, digits, fixed, number, percent, points, with_spread


def write_value(metric: MetricInfo, value: float | None, spread: float | None = None) -> str:
    r"""Write a metric with its spread over seeds, if there is one.

    >>> loss = MetricInfo(name="loss", higher_is_better=False)
    >>> write_value(MetricInfo(name="accuracy", percent=True), 0.7134), write_value(loss, 2.34567, 0.0213)
    ('71.3\xa0%', '2.346\xa0±\xa00.021')
    """
    if metric.percent:
        return percent(value, spread)
    text = with_spread(value, spread) if spread else digits(value, 4)
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def write_number(metric: MetricInfo, value: float | None, spread: float | None = None) -> str:
    """Write a metric without a percent sign, for a column whose heading has it.

    >>> write_number(MetricInfo(name="accuracy", percent=True), 0.7134, 0.01)
    '71.3 ± 1.0'
    """
    if not metric.percent:
        return with_spread(value, spread) if spread else digits(value, 4)
    return fixed(None if value is None else 100 * value, 1, None if spread is None else 100 * spread)


def write_change(metric: MetricInfo, change: float | None) -> str:
    """Write a difference from one worker: in points for a fraction, otherwise in percent.

    >>> write_change(MetricInfo(name="accuracy", percent=True), -28.94), write_change(MetricInfo(name="MAE"), 3.21)
    ('−28.9', '+3.2 %')
    """
    if change is None or number(change) is None:
        return NONE
    return points(change) if metric.percent else f"{points(change)} %"


def write_interval(metric: MetricInfo, interval: tuple[float, float]) -> str:
    """Write the interval of a difference from one worker.

    >>> write_interval(MetricInfo(name="accuracy", percent=True), (-1.24, 0.6))
    '−1.2 to +0.6'
    """
    low, high = interval
    return f"{points(low)} to {points(high)}{'' if metric.percent else ' %'}"


def write_target(metric: MetricInfo, value: float, data: str) -> str:
    r"""Write a target as it was given, with the metric and the data on which it counts.

    >>> write_target(MetricInfo(name="accuracy", percent=True), 0.825, "validation")
    '82.5\xa0% validation accuracy'
    >>> write_target(MetricInfo(name="loss", higher_is_better=False), 0.29, "test")
    '0.29 test loss'
    """
    text = f"{100 * value:g}\N{NO-BREAK SPACE}%" if metric.percent else f"{value:g}"
    return f"{text} {data} {metric.name}"


def describe_change(metric: MetricInfo) -> str:
    """Return what the differences from one worker are, for a caption."""
    if metric.percent:
        return f"points of test {metric.name}"
    return f"change of the test {metric.name} in percent"


def describe_kept(metric: MetricInfo, tolerance: float) -> str:
    """Return what ``kept`` means.

    >>> describe_kept(MetricInfo(name="accuracy", percent=True), 0.01)
    'at most 1 point lower'
    >>> describe_kept(MetricInfo(name="loss", higher_is_better=False), 0.025)
    'at most 2.5 % higher'
    """
    amount = f"{100 * tolerance:g}"
    unit = f"point{'s' * (amount != '1')}" if metric.percent else "%"
    return f"at most {amount} {unit} {'lower' if metric.higher_is_better else 'higher'}"
