"""The loss while the line is trained, against updates and against epochs."""

from __future__ import annotations

from rueda.labs.lab_1.paths import descent, thinned, updates_per_epoch
from rueda.records.descent import DescentPath
from rueda.report.model import short
from rueda.report.plot import Plot, View, own_switch
from rueda.study.gradient_descent import NUM_POINTS

BATCHES = {1: "@red", 8: "@green", 32: "@orange", NUM_POINTS: "@blue"}
"""the batch sizes that are compared, and their colours"""


def losses_against(rate: float) -> Plot:
    """Draw the loss of each batch size; a switch chooses updates or epochs."""
    paths = [descent(batch, rate).paths[0] for batch in BATCHES]
    by_updates, by_epochs = zip(*map(_along, paths), strict=True)
    traces = [
        {"x": by_updates[at], "y": [short(min(loss, 1e6)) for loss in thinned(path).loss], "mode": "lines",
         "name": f"batch {path.batch}", "line": {"color": colour, "width": 2.5},
         "hovertemplate": "%{fullData.name}: loss %{y:.4g} at %{x:.3g}"}
        for at, (path, colour) in enumerate(zip(paths, BATCHES.values(), strict=True))
    ]  # fmt: skip
    views = [
        View(label="against updates", traces=[{"x": x} for x in by_updates], changes={"xaxis.title": "updates"}),
        View(label="against epochs", traces=[{"x": x} for x in by_epochs], changes={"xaxis.title": "epochs"}),
    ]
    return Plot(
        name="losses", title="The loss while training", traces=traces, switches=own_switch("losses", views), height=380,
        note="Mean squared error on all points; each line ends where the training stops. Both axes are logarithmic.",
        layout={
            "xaxis": {"title": "updates", "type": "log", "dtick": 1},
            "yaxis": {"title": "loss", "type": "log", "dtick": 1}, "showlegend": True,
            "margin": {"l": 64, "r": 16, "t": 12, "b": 84},
        },
    )  # fmt: skip


def _along(path: DescentPath) -> tuple[list[float | None], list[float | None]]:
    """Return the updates and the epochs at the points of the thinned path, from the first update on."""
    whole = DescentPath(batch=path.batch, w=tuple(map(float, range(len(path.w)))), b=path.b, loss=path.loss)
    updates = thinned(whole).w
    each = updates_per_epoch(NUM_POINTS, path.batch)
    return [short(max(at, 0.5)) for at in updates], [short(max(at, 0.5) / each) for at in updates]
