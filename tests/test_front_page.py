"""Every accuracy on the front page is that of a committed study, at the task's own recipe, with seeds and control."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rueda.records.archive import read_archive
from rueda.records.study import Study, StudyRow
from rueda.tasks import load_task
from rueda.terminal.numbers import percent

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
RESULTS = ROOT / "docs" / "results"

CIFAR = {
    ("1", "nothing"): ("cifar10-8-workers", "one-worker"),
    ("1", "batch norm: the fair control"): ("cifar10-8-workers-control", "one-worker+batch-norm"),
    ("1", "batch norm, rate falls where that batch grows: the control of growth"): (
        "cifar10-8-workers-fresh",
        "one-worker+batch-norm+decay",
    ),
    ("8", "nothing"): ("cifar10-8-workers", "naive"),
    ("8", "batch norm, rate x 8, warm-up"): ("cifar10-8-workers", "batch-norm+linear-warmup"),
    ("8", "batch norm, growing batch"): ("cifar10-8-workers-fresh", "batch-norm+batch-growth"),
    ("64", "nothing"): ("cifar10-64-workers", "naive"),
    ("64", "batch norm, growing batch"): ("cifar10-64-workers-fresh", "batch-norm+batch-growth"),
}
"""the rows of the README's table, and the study and row that each is taken from"""


def row_of(study: str, name: str) -> StudyRow:
    found = Study.load(RESULTS / study / Study.FILE).row(name)
    assert found is not None, f"docs/results/{study} has no row {name}"
    return found


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def accuracy(row: StudyRow) -> str:
    return plain(percent(row.test_accuracy, row.test_accuracy_spread))


def test_the_table_is_that_of_the_studies() -> None:
    table = README.partition("<!-- cifar10 -->")[2].partition("\n\n")[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert {(workers, changed) for workers, changed, *_ in cells} == set(CIFAR)
    for workers, changed, updates, test_accuracy, seeds in cells:
        row = row_of(*CIFAR[workers, changed])
        assert [f"{row.workers}", f"{row.updates:,}", accuracy(row), f"{len(row.seeds)}"] == [
            workers, updates, test_accuracy, seeds,
        ]  # fmt: skip


def test_the_opening_figures_are_test_accuracies() -> None:
    many, one = re.findall(r"ends at (\d+) % test accuracy instead of (\d+) %", README)[0]
    for shown, name in ((many, "naive"), (one, "one-worker")):
        assert shown == f"{100 * (row_of('cifar10-8-workers', name).test_accuracy or 0):.0f}"


@pytest.mark.parametrize("name", ["one-worker", "naive", "batch-norm+batch-growth", "one-worker+batch-norm+decay"])
def test_the_picture_of_the_demo_says_what_its_study_says(name: str) -> None:
    alt = " ".join(re.findall(r'alt="([^"]*)"', README)[0].split())
    assert accuracy(row_of("glyphs-8-workers", name)) in alt


@pytest.mark.parametrize("study", sorted({study for study, _ in CIFAR.values()} | {"glyphs-8-workers"}))
def test_the_studies_have_the_tasks_own_recipe(study: str) -> None:
    """No learning rate, batch or length is set for how a table looks."""
    folder = RESULTS / study
    found = Study.load(folder / Study.FILE)
    own, runs = load_task(found.task).recipe, read_archive(folder)
    of_one = [(row.name, runs[name].recipe()) for row in found.rows if row.workers == 1 for name in row.runs]
    assert of_one, "a study on the front page has one worker beside the others"
    for name, used in of_one:
        for field in ("batch", "rate", "optimizer", "momentum", "schedule", "epochs", "weight_decay", "clip"):
            if (field, name.split("+")[-1]) != ("schedule", "decay"):  # the control of a growing batch
                assert getattr(used, field) == getattr(own, field), field
