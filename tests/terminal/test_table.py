"""Tables on a terminal: figures are never cut, brackets are only brackets."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rueda.terminal.table import make_table

ROWS = [["1,024", "batch-norm + linear-warmup + longer-training", "[bold]"], ["8", "naive", "12,345.67"]]


def printed(width: int) -> str:
    table = make_table(
        "a [title]", ("workers", "condition", "images a second"), ROWS, left=("condition",), caption="says [what]",
        bold=[1],
    )  # fmt: skip
    stream = io.StringIO()
    Console(file=stream, width=width).print(table)
    return stream.getvalue()


@pytest.mark.parametrize("width", [40, 80, 120])
def test_figures_are_whole_at_any_width(width: int) -> None:
    shown = printed(width)
    for word in ("a [title]", "says [what]", "1,024", "12,345.67", "[bold]", "workers", "naive"):
        assert word in shown
    assert max(len(line) for line in shown.splitlines()) <= width
    assert ("batch-norm + linear-warmup + longer-training" in shown) == (width >= 80)


def test_a_table_without_rows() -> None:
    assert make_table("nothing", ("a", "b"), []).row_count == 0
