"""Tables as Markdown: those of the page, one row a line, and no name breaks out of its cell."""

from __future__ import annotations

from pathlib import Path

import pytest

from report.hostile import HOSTILE, write_hostile
from report.samples import TABLE, write_others, write_study
from rueda.report.markdown import markdown_tables, study_table
from rueda.report.model import Entry


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.replace("\\|", "¦")[1:-1].split("|")] for line in lines]


def test_one_worker_stands_first_and_the_best_of_many_next(tmp_path: Path) -> None:
    write_study(tmp_path, seeds=2)
    heads, rule, *cells = rows(markdown_tables([tmp_path]))
    assert heads[:3] == ["workers", "condition", "test accuracy"] and set(rule) == {"---", "---:"}
    assert {row[1] for row in cells} == {name for name, *_ in TABLE} and len(cells) == len(TABLE)
    assert cells[0][:2] == ["1", "one-worker"] and cells[0][3] == "–" and cells[0][6] == "2"
    found = [float(row[2].split()[0]) for row in cells[1:] if row[2] != "–"]
    assert found == sorted(found, reverse=True)


def test_what_diverged_stands_last_and_says_so() -> None:
    entries = [
        Entry(name="wild", workers=8, diverged=True, num_diverged=1, updates=3),
        Entry(name="unsteady", workers=8, diverged=True, num_diverged=1, num_seeds=3, test=0.9),
        Entry(name="calm", workers=8, test=0.5, against=-20.0, verdict="lost"),
        Entry(name="one-worker", workers=1, test=0.7),
    ]
    cells = rows(study_table(entries))[2:]
    assert [(row[1], row[3]) for row in cells] == [("one-worker", "–"), ("calm", "−20.0, lost"),
        ("wild", "diverged"), ("unsteady", "diverged, 1 of 3 seeds"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["a|b", "<script>alert(1)</script>", "two\nlines", "[x](javascript:alert(1))"])
def test_a_name_stays_in_its_cell(name: str) -> None:
    text = study_table([Entry(name=name, workers=8, test=0.5)])
    assert len(text.splitlines()) == 3 and len(rows(text)[2]) == 7
    assert "<" not in text


def test_hostile_files_make_no_tags(tmp_path: Path) -> None:
    write_hostile(tmp_path)
    text = markdown_tables([tmp_path])
    assert HOSTILE and "<" not in text and "](" not in text.replace("\\[", "")
    text.encode()  # can be printed


def test_rehearsed_rows_say_so(tmp_path: Path) -> None:
    write_study(tmp_path, seeds=1)
    cells = rows(markdown_tables([tmp_path]))[2:]
    assert {(row[0], row[1] == "one-worker") for row in cells} == {("1", True), ("8, rehearsed", False)}


def test_throughput_steps_and_the_linear_model_are_told_whole(tmp_path: Path) -> None:
    text = markdown_tables([write_others(tmp_path)])
    assert "### Throughput against local batch" in text and "| 512 | 680.0 ± 8.0 |" in text
    assert "### Updates to 80 % test accuracy" in text and "| 64 | 0.05 | 809 | 51,760 |" in text  # 90 + 46,000 / 64
    assert "### Gradient descent on the linear model" in text and "Means over 20 seeds." in text
    heads, _, first, *_ = rows(text.partition("linear model\n")[2])
    assert heads == ["batch", "epochs", "updates", "w", "b", "loss"]
    assert first[3].endswith("± 0.30") and first[4].endswith("± 0.70")
