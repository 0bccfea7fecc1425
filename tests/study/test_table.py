"""The table of a study on a terminal of 80 columns: every figure and word is whole."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from rueda.records.study import Study, StudyRow
from rueda.study.table import table_of
from rueda.terminal.study_words import control_missing
from rueda.terminal.table import print_table


def _row(name: str, *, accuracy: float | None, epochs: int = 3, diverged: int = 0, spread: float = 0.02) -> StudyRow:
    return StudyRow(
        name=name, summary="", workers=1 if "one-worker" in name else 8, global_batch=512, epochs=epochs,
        updates=12_345, test_accuracy=accuracy, test_accuracy_spread=spread, train_accuracy=accuracy,
        train_accuracy_spread=0.1234, seconds=1234.0, images_per_second=12345.0, rehearsed=True, seeds=(0, 1),
        diverged=diverged, runs=("a", "b"),
    )  # fmt: skip


ROWS = (
    _row("one-worker", accuracy=1.0), _row("naive", accuracy=0.673),
    _row("longer-training", accuracy=0.9, epochs=24, spread=0.186),
    _row("ghost-batch-norm+linear-warmup", accuracy=0.891), _row("lamb", accuracy=0.5, diverged=1),
    _row("larc", accuracy=None, diverged=2),
)  # fmt: skip


def test_the_words_around_the_table() -> None:
    rows = [_row("naive", accuracy=0.6, epochs=1), _row("one-worker+batch-norm+decay", accuracy=0.9, epochs=1)]
    rows += [_row("one-worker", accuracy=0.9, epochs=1), _row("batch-norm+batch-growth", accuracy=0.8, epochs=1)]
    study = Study(task="glyphs-cnn", workers=8, epochs=1, rows=tuple(rows)).judged()
    shown = table_of(study)
    assert shown.title == "glyphs-cnn, accuracy after 1 epoch: 8 workers, rehearsed"
    assert "over 2 seeds;" in shown.caption and control_missing(study) == ""
    names = ["one-worker", "one-worker + batch-norm + decay", "naive", "batch-norm + batch-growth"]
    assert [row[0] for row in shown.rows] == names
    without = replace(study, rows=tuple(row for row in study.rows if row.name != "one-worker+batch-norm+decay"))
    assert control_missing(without).endswith("Add it with --rows one-worker+batch-norm+decay.")
    fewer = replace(study, rows=(*study.rows[:2], replace(study.rows[2], seeds=(0,))))
    assert "over up to 2 seeds;" in table_of(fewer).caption and control_missing(fewer) == ""


@pytest.mark.parametrize("columns", [80, 120])
def test_nothing_is_cut(columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "dumb")
    print_table(table_of(Study(task="glyphs-cnn", workers=8, epochs=3, rows=ROWS).judged()))
    shown = capsys.readouterr().out
    assert "…" not in shown and "..." not in shown and all(len(line) <= columns for line in shown.splitlines())
    words = re.split(r"\s+", shown)
    for word in (
        "ghost-batch-norm", "linear-warmup", "longer-training", "(24", "epochs)", "100.0", "18.6", "12.3", "12,345",
        "−32.7", "lost", "undecided", "(−38.5", "to", "−26.9)", "diverged,", "diverged", "condition",
        "against", "images/s",
    ):  # fmt: skip
        assert word in words, word
