"""The reader of ``curvature.json``: eigenvalues, trace and sharpness of models side by side, and their spectra.

Models of one name (seeds of one condition) are shown as one, by mean and spread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from rueda.records.curvature import Curvature, HessianResult, ModelCurvature, largest_stable_rate
from rueda.records.study import mean_and_spread
from rueda.report.figures.parts import area, colour, curve, error_bars, log_axis, one_two_five, upright
from rueda.report.model import Cell, Section, Table
from rueda.report.plot import Plot
from rueda.terminal.numbers import NONE, count, digits, percent, with_spread

_KINDS = {
    "keskar": "Keskar's sharpness, ε = {radius:g}",
    "keskar-subspace": "in a random subspace, ε = {radius:g}",
    "sam": "rise within ρ = {radius:g}",
    "adaptive": "rise within relative ρ = {radius:g}",
}
_SHORT = {
    "keskar": "Keskar, ε {radius:g}",
    "keskar-subspace": "subspace, ε {radius:g}",
    "sam": "within ρ {radius:g}",
    "adaptive": "relative ρ {radius:g}",
}
"""shorter names of the same measures, for the labels of a figure"""

Found = tuple[float | None, float | None]
"""the mean over seeds and the standard deviation"""
Read = Callable[[ModelCurvature], float | None]


def to_section(found: Curvature) -> Section:
    """Return the section about the curvature of models."""
    groups: dict[str, list[ModelCurvature]] = {}
    for member in found.members:
        groups.setdefault(member.title, []).append(member)
    section = Section(title=f"Curvature of {found.task}" if found.task else "Curvature", task=found.task)
    section.told.append(_sentence(groups))
    section.told += _remarks(groups)
    section.tables += _tables(groups)
    section.plots += [plot for plot in (_comparison(groups), _eigenvalues(groups), _spectra(groups)) if plot]
    return section


def _top(member: ModelCurvature) -> float | None:
    return None if member.hessian is None else member.hessian.largest


def _trace(member: ModelCurvature) -> float | None:
    return None if member.hessian is None else member.hessian.trace


def _measure(kind: str, radius: float) -> Read:
    def value(member: ModelCurvature) -> float | None:
        one = None if member.sharpness is None else member.sharpness.measure(kind, radius)
        return None if one is None else one.value

    return value


def _over_seeds(members: Iterable[ModelCurvature], read: Read) -> Found:
    values = [value for value in map(read, members) if value is not None and math.isfinite(value)]
    return mean_and_spread(values)


def _sentence(groups: dict[str, list[ModelCurvature]]) -> str:
    tops = {name: _over_seeds(members, _top)[0] for name, members in groups.items()}
    known = {name: top for name, top in tops.items() if top is not None}
    if len(known) > 1:
        sharp, flat = max(known, key=lambda name: known[name]), min(known, key=lambda name: known[name])
        return (
            f"The sharpest is {sharp}, whose largest eigenvalue is {digits(known[sharp])}; "
            f"the flattest is {flat} with {digits(known[flat])}."
        )
    if known:
        (name, top), = known.items()  # fmt: skip
        rate = largest_stable_rate(top)
        told = "" if rate is None else f"; gradient descent is stable below a learning rate of {digits(rate)}"
        return f"The largest eigenvalue of {name} is {digits(top)}{told}."
    return "The sharpness of each model: how far the loss rises in its neighbourhood."


def _remarks(groups: dict[str, list[ModelCurvature]]) -> list[str]:
    """Return sentences about eigenvalues that did not converge and about the treatment of batch norm."""
    told = []
    open_ends = [
        name
        for name, members in groups.items()
        if any(one.hessian and not one.hessian.has_converged for one in members)
    ]
    if open_ends:
        names = "; ".join(open_ends)
        told.append(f"Not converged: the eigenvalues of {names} are lower bounds.")
    every = [one for members in groups.values() for one in members]
    parts = [part for one in every for part in (one.hessian, one.sharpness) if part is not None]
    if any(part.batch_norm != "none" for part in parts):
        told.append("Batch norm used its running statistics, as in evaluation.")
    return told


def _tables(groups: dict[str, list[ModelCurvature]]) -> list[Table]:
    tables = []
    hessians = [(name, [one for one in members if one.hessian]) for name, members in groups.items()]
    hessians = [(name, members) for name, members in hessians if members]
    columns: dict[str, Callable[[tuple[str, list[ModelCurvature]]], Cell]]
    if hessians:
        columns = {
            "model": lambda group: group[0],
            "largest eigenvalue": lambda group: _mean(group[1], _top),
            "eigenvalue: which examples": lambda group: _drawn_error(_hessians(group[1]), trace=False),
            "eigenvalue: numerical": lambda group: _eigenvalue_error(_hessians(group[1])),
            "trace": lambda group: _mean(group[1], _trace),
            "trace: which examples": lambda group: _drawn_error(_hessians(group[1]), trace=True),
            "trace: random vectors": lambda group: _trace_error(_hessians(group[1])),
            "test accuracy": lambda group: _mean(group[1], lambda one: one.test_accuracy, percent),
            "seeds": lambda group: (len(group[1]), count(len(group[1]))),
        }
        first = hessians[0][1][0]
        note = (
            f"On {_hessians([first])[0].examples:,} examples ({first.split}); ± is the spread over seeds. The other "
            "columns are margins of single networks, the largest over the seeds: how far the value may change if other "
            "examples are drawn (90 %, Student's t), and how far it may be off on these examples: an eigenvalue by "
            "the search's error, a trace by its random vectors (90 %). A dash: not measured."
        )
        tables.append(Table.of("Curvature", hessians, columns, note))
    measures = _sharpness_columns(groups)
    if measures:
        columns = {"model": lambda group: group[0]}
        for kind, radius in measures:
            columns[_KINDS[kind].format(radius=radius)] = partial(_rise, read=_measure(kind, radius))
        with_any = [group for group in groups.items() if any(member.sharpness is not None for member in group[1])]
        note = "Keskar's: 100 (highest - loss) / (1 + loss); the others: highest - loss, of the highest loss found."
        tables.append(Table.of("Sharpness", with_any, columns, note))
    return tables


def _mean(
    members: list[ModelCurvature], read: Read, write: Callable[[float | None, float | None], str] | None = None
) -> Cell:
    found = _over_seeds(members, read)
    return found[0], (write or with_spread)(*found)


def _rise(group: tuple[str, list[ModelCurvature]], read: Read) -> Cell:
    if any(value is not None and not math.isfinite(value) for value in map(read, group[1])):
        return None, "infinite"  # the loss overflows within the neighbourhood
    return _mean(group[1], read)


def _hessians(members: Iterable[ModelCurvature]) -> list[HessianResult]:
    return [one.hessian for one in members if one.hessian is not None]


def _eigenvalue_error(found: list[HessianResult]) -> Cell:
    worst = max(one.eigenvalues[0].numerical_error / abs(one.largest or math.inf) for one in found)
    return worst, f"{digits(100 * worst, 2)} %" + (
        "" if all(one.has_converged for one in found) else " (not converged)"
    )


def _trace_error(found: list[HessianResult]) -> Cell:
    return _largest_share([(one.trace_margin, one.trace) for one in found])


def _drawn_error(found: list[HessianResult], trace: bool) -> Cell:
    """Return the margin that comes from which examples were drawn, of the trace or the largest eigenvalue."""
    errors = [one.trace_sampling_error if trace else one.eigenvalues[0].sampling_error for one in found]
    margins = [one.sampling_margin(error) for one, error in zip(found, errors, strict=True)]
    return _largest_share([(far, one.trace if trace else one.largest) for far, one in zip(margins, found, strict=True)])


def _largest_share(pairs: list[tuple[float | None, float | None]]) -> Cell:
    shares = [abs(far) / abs(value or math.inf) for far, value in pairs if far is not None]
    return (max(shares), f"{digits(100 * max(shares), 2)} %") if shares else (None, NONE)


def _sharpness_columns(groups: dict[str, list[ModelCurvature]]) -> list[tuple[str, float]]:
    found = [one.sharpness for members in groups.values() for one in members if one.sharpness is not None]
    every = [one for part in found for one in part.measures]
    return list(dict.fromkeys((one.kind, one.radius) for one in every if one.kind in _KINDS))


def _comparison(groups: dict[str, list[ModelCurvature]]) -> Plot | None:
    """Draw every measure as a ratio to the first model's: dots with their spread on a logarithmic axis."""
    readers: dict[str, Read] = {"top eigenvalue": _top, "trace": _trace}
    for kind, radius in _sharpness_columns(groups):
        readers[_SHORT[kind].format(radius=radius)] = _measure(kind, radius)
    table = {label: [_over_seeds(members, reader) for members in groups.values()] for label, reader in readers.items()}
    table = {label: row for label, row in table.items() if (row[0][0] or 0) > 0}
    if len(groups) < 2 or not table:
        return None
    traces, drawn = [], list[float | None]()
    base = [row[0][0] or math.nan for row in table.values()]
    for index, name in enumerate(groups):
        means = [row[index][0] for row in table.values()]
        ends = [(row[index][1] or 0.0) / one for row, one in zip(table.values(), base, strict=True)]
        ratios = [None if mean is None or mean <= 0 else mean / one for mean, one in zip(means, base, strict=True)]
        drawn += ratios
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": name, "marker": {"color": colour(index), "size": 9},
                "y": [row + 0.7 * ((index + 0.5) / len(groups) - 0.5) for row in range(len(table))],
                "x": ratios, "error_x": error_bars(ends, "@muted", thickness=1.2, width=2),
                "text": [with_spread(*row[index]) for row in table.values()],
                "hovertemplate": "%{fullData.name}: %{text}, %{x:.3g} times the first model's",
            }
        )  # fmt: skip
    shown = [value for value in drawn if value is not None and math.isfinite(value)]
    ticks = one_two_five(min(shown, default=1) / 3, max(shown, default=1) * 3)
    layout = {
        "showlegend": True, "shapes": [upright(1, "@ink", 1.2, "dot")],
        "xaxis": log_axis("ratio to the first model", ticks),
        "yaxis": {
            "title": "", "tickvals": list(range(len(table))), "ticktext": list(table), "zeroline": False,
            "range": [len(table) - 0.5, -0.5],
        },
    }  # fmt: skip
    note = f"Above 1: sharper than {next(iter(groups))}, the first model. Error bars: standard deviation over seeds."
    few = [tick for tick in ticks if math.log10(tick).is_integer()]
    narrow = {f"xaxis.{name}": log_axis("", few)[name] for name in ("tickvals", "ticktext")} if len(few) > 1 else {}
    height = 150 + len(table) * (14 + 9 * len(groups))
    return Plot(
        name="curvature-comparison", title="Sharp and flat, side by side", traces=traces, layout=layout, note=note,
        height=height, narrow_height=height + 16 * len(groups), narrow=narrow,
    )  # fmt: skip


def _eigenvalues(groups: dict[str, list[ModelCurvature]]) -> Plot | None:
    traces, drawn = [], False
    for index, (name, members) in enumerate(groups.items()):
        first = next(iter(_hessians(members)), None)
        if first is not None and len(first.eigenvalues) > 1:
            ranks, values = range(1, len(first.eigenvalues) + 1), [one.value for one in first.eigenvalues]
            margins = [first.sampling_margin(one.sampling_error) for one in first.eigenvalues]
            errors = error_bars(
                [far if far is not None else one.error for far, one in zip(margins, first.eigenvalues, strict=True)],
                "@muted",
            )
            drawn = drawn or None not in margins
            told = "eigenvalue %{x}: %{y:.4g}"
            traces.append(
                curve(ranks, values, colour(index), mode="lines+markers", name=name, error_y=errors, hovertemplate=told)
            )
    if not traces:
        return None
    layout = {
        "showlegend": len(traces) > 1, "xaxis": {"title": "rank", "dtick": 1},
        "yaxis": {"title": "eigenvalue", "rangemode": "tozero"},
    }  # fmt: skip
    note = "Error bars: 90 %, if other examples are drawn." if drawn else "Error bars: numerical errors."
    return Plot(name="curvature-eigenvalues", title="The largest eigenvalues", traces=traces, layout=layout, note=note)


def _spectra(groups: dict[str, list[ModelCurvature]]) -> Plot | None:
    """Draw the spectral densities on a logarithmic axis, since most eigenvalues are almost zero."""
    traces: list[dict[str, Any]] = []
    shaded: set[str] = set()
    for index, (name, members) in enumerate(groups.items()):
        found = next((one.density for one in _hessians(members) if one.density), None)
        if found is not None:
            floor, hue = 1e-6 * max(found.values), colour(index)
            lows, highs = found.band()
            low, middle, high = ([max(floor, value) for value in line] for line in (lows, found.values, highs))
            shaded.add("90 % interval" if found.lows else "one standard error")
            told = "eigenvalue %{x:.3g}: density %{y:.2g}"
            traces.append(area(found.positions, low, high, hue, 0.18, showlegend=False))
            traces.append(curve(found.positions, middle, hue, name=name, hovertemplate=told))
    if not traces:
        return None
    layout = {
        "showlegend": len(traces) > 2, "xaxis": {"title": "eigenvalue"},
        "yaxis": {"title": "density", "type": "log", "exponentformat": "power"},
    }  # fmt: skip
    note = (
        "The share of all eigenvalues at each size; the peaks on the right are the few steep directions. "
        f"Shaded: {' or '.join(sorted(shaded))}, for the random vectors; which examples were drawn is left out."
    )
    return Plot(name="curvature-spectrum", title="The spectrum", traces=traces, layout=layout, note=note, height=420)
