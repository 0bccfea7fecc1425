"""The technique tables of this project, and the published one with what was confounded in it."""

from __future__ import annotations

from rueda.labs import stored
from rueda.labs.showing import Drawn, Source, Text
from rueda.records.study import Study, StudyRow
from rueda.report.figures.techniques import techniques
from rueda.report.model import Table
from rueda.report.studies import read_study
from rueda.terminal.metrics import write_change, write_value

TABLES = {
    "CIFAR-10, 8 workers": "study-cifar10-8-workers",
    "CIFAR-10, 64 workers": "study-cifar10-64-workers",
    "Fashion-MNIST, 8 workers": "study-fashion-mnist-8-workers",
    "Fashion-MNIST, 64 workers": "study-fashion-mnist-64-workers",
    "glyphs, 8 workers": "study-glyphs-8-workers",
}
"""the stored studies by title"""

PUBLISHED = (
    ("one GPU", 0.71, "one-worker"),
    ("8 GPUs, nothing changed", 0.44, "naive"),
    ("8 GPUs, rate x 8, no warm-up", 0.53, "linear-scaling"),
    ("8 GPUs, batch norm", 0.64, "batch-norm"),
    ("8 GPUs, rate x 8 after a warm-up", 0.65, "batch-norm+linear-warmup"),
    ("8 GPUs, LAMB", 0.81, "batch-norm+lamb"),
)
"""the lecture's table, training accuracy after 12 epochs on CIFAR-10, and the row of our study that comes nearest"""


AS_PUBLISHED = Source(
    live="Published in a lecture on training with many GPUs; not measured by this project.",
    static="Published in a lecture on training with many GPUs; not measured by this project.",
)


def study(table: str) -> Study:
    """Return a stored study by its title."""
    return stored.load(Study, TABLES[table])


def table_figure(table: str) -> list[Drawn]:
    """Draw the rows of a stored study, as the report does."""
    name = TABLES[table]
    return [Text(stored.line(name)), techniques(read_study({Study.FILE: stored.path(name)}))]


def published_table() -> Table:
    """Return the published table as it was shown: one column."""
    return Table.of(
        "As published: accuracy after 12 epochs, CIFAR-10",
        PUBLISHED,
        {"condition": lambda one: one[0], "accuracy": lambda one: (one[1], f"{one[1]:.0%}")},
    )


def beside_ours() -> Table:
    """Return the published rows beside the nearest rows of our study, on training and on test data."""
    found = study("CIFAR-10, 8 workers")

    def cell(name: str, what: str) -> tuple[float | None, str]:
        row = found.row(name)
        value = None if row is None else getattr(row, what)
        return value, write_value(found.metric, value)

    return Table.of(
        "The published rows, and ours",
        PUBLISHED,
        {
            "published": lambda one: one[0],
            "training, published": lambda one: (one[1], f"{one[1]:.0%}"),
            "row of our study": lambda one: one[2],
            "training, ours": lambda one: cell(one[2], "training"),
            "test, ours": lambda one: cell(one[2], "value"),
        },
        note="Ours: sharded data, distinct batches on every worker, 8 rehearsed workers. Our row without warm-up has "
        "no batch norm, the published one had.",
    )


def effects() -> Table:
    """Return what each factor changes by itself: a row with it minus the row without it, in points of test accuracy."""
    found = study("CIFAR-10, 8 workers")
    pairs = (
        ("batch norm, on one worker", "one-worker", "one-worker+batch-norm"),
        ("batch norm, on 8 workers", "naive", "batch-norm"),
        ("rate x 8 after a warm-up, without batch norm", "naive", "linear-warmup"),
        ("rate x 8 after a warm-up, with batch norm", "batch-norm", "batch-norm+linear-warmup"),
        ("LAMB, without batch norm", "naive", "lamb"),
        ("LAMB, with batch norm", "batch-norm", "batch-norm+lamb"),
    )

    def change(pair: tuple[str, str, str]) -> float | None:
        without, with_it = (_row(found, name) for name in pair[1:])
        return found.metric.change(with_it.value, without.value)

    return Table.of(
        "Each factor on its own, CIFAR-10 on 8 workers",
        pairs,
        {
            "factor": lambda pair: pair[0],
            "without": lambda pair: (_row(found, pair[1]).value, write_value(found.metric, _row(found, pair[1]).value)),
            "with": lambda pair: (_row(found, pair[2]).value, write_value(found.metric, _row(found, pair[2]).value)),
            "change, points": lambda pair: (change(pair), write_change(found.metric, change(pair))),
        },
        note="Test accuracy; most rows have one seed, and seeds differ by about a point.",
    )


def _row(found: Study, name: str) -> StudyRow:
    row = found.row(name)
    assert row is not None, name
    return row
