"""Tables on a terminal: no word and no figure is ever cut, brackets are only brackets."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rueda.terminal.table import TextTable, print_prose, print_table

ROWS = [["1,024", "batch-norm + linear-warmup + longer-training", "[bold]"], ["8", "naive", "12,345.67"]]
TABLE = TextTable(
    "a [title]", ("workers", "condition", "images a second"), ROWS, left=("condition",), caption="says [what]", bold=[1]
)
STUDY = TextTable(
    "glyphs-cnn, 8 workers",
    ("workers", "condition", "train %", "test %", "updates", "images/s", "time", "against one"),
    [
        ["1", "one-worker", "89.1 ± 0.3", "89.0 ± 0.3", "1,125", "12,345", "1 min 15 s", ""],
        ["8", "naive", "67.3 ± 18.6", "67.0 ± 18.6", "138", "12,345", "1 min 15 s", "−22.3 lost"],
        ["8", "batch-norm + longer-training (24 epochs)", "9 ± 3", "9 ± 3", "1", "5", "1 s", "diverged, 1 of 2"],
    ],
    left=("condition", "against one"),
    optional=("updates", "images/s", "time", "train %"),
    caption="mean ± standard deviation over 2 seeds.",
)  # fmt: skip


def printed(table: TextTable, width: int) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(table, crop=False)
    return stream.getvalue()


def lines(shown: str) -> list[str]:
    return [line.rstrip() for line in shown.splitlines()]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_figures_are_whole_at_any_width(width: int) -> None:
    shown = printed(TABLE, width)
    for word in ("a [title]", "says [what]", "1,024", "12,345.67", "[bold]", "workers", "naive", "longer-training"):
        assert word in shown
    assert max(map(len, lines(shown))) <= width
    assert ("batch-norm + linear-warmup + longer-training" in shown) == (width >= 80)


def test_headings_break_between_words_before_cells_do() -> None:
    shown = lines(printed(TextTable("t", ("name", "images a second"), [["a b c", "5"]], left=("name",)), 13))
    assert "images" in shown[1] and "a b c" in shown[-1] and "5" in shown[-1]


@pytest.mark.parametrize("width", [72, 80, 100, 120, 200])
def test_a_study_with_seeds_keeps_its_verdicts(width: int) -> None:
    shown = printed(STUDY, width)
    assert max(map(len, lines(shown))) <= width
    for words in ("67.0 ± 18.6", "−22.3", "lost", "diverged,", "one-worker", "longer-training", "89.0 ± 0.3"):
        assert words in shown, words
    assert "…" not in shown
    head = shown.split("───")[0]
    left_out = [heading for heading in ("updates", "images/s", "time") if heading not in head]
    assert bool(left_out) == ("A wider terminal also shows" in shown) == (width < 100)
    if width == 200:
        assert "batch-norm + longer-training (24 epochs)" in shown


def test_a_table_that_cannot_fit_is_too_wide_rather_than_cut() -> None:
    shown = printed(TextTable("t", ("a", "b"), [["longer-training", "12,345,678"]], left=("a",)), 12)
    assert "longer-training  12,345,678" in shown


def test_a_pipe_has_no_width_unless_columns_is_set(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table(STUDY)
    assert "diverged, 1 of 2" in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "80")
    print_table(STUDY)
    shown = capsys.readouterr().out.splitlines()
    assert max(map(len, shown)) <= 80 and all(line == line.rstrip() for line in shown)


@pytest.mark.parametrize("width", [None, 20, 40])
def test_prose_breaks_between_words(
    width: int | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if width:
        monkeypatch.setenv("COLUMNS", str(width))
    text = "  8 workers would be slower than one: use a larger-local-batch or fewer workers."
    print_prose(text, indent="  ")
    shown = capsys.readouterr().out.splitlines()
    assert " ".join(shown).split() == text.split() and all(line.startswith("  ") for line in shown)
    assert (max(map(len, shown)) <= width) if width else shown == [text]


def test_a_table_without_rows() -> None:
    assert "nothing" in printed(TextTable("nothing", ("a", "b"), []), 40)
