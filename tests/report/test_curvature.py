"""Curvature on the page: means over seeds, what has not converged is said, texts are escaped, nothing is invented."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from report.samples import curvature_member as member
from rueda.records.curvature import Curvature, ModelCurvature
from rueda.report.collect import collect
from rueda.report.curvature import to_section
from rueda.report.page import render


def page_of(folder: Path, *members: ModelCurvature) -> tuple[str, object]:
    Curvature(task="glyphs-cnn", members=members, command="rueda examine").save(folder / "curvature.json")
    (section,) = collect([folder])
    return render([section]), section


def test_seeds_are_one_row_and_the_sharpest_is_named(tmp_path: Path) -> None:
    page, section = page_of(
        tmp_path, member("one-worker", 0, 4.0), member("one-worker", 1, 6.0), member("naive", 0, 50.0, keskar=40.0)
    )
    assert "The sharpest is naive, whose largest eigenvalue is 50; the flattest is one-worker with 5." in page
    curvature, sharpness = section.tables  # type: ignore[attr-defined]
    assert [row[0] for row in curvature.rows] == ["one-worker", "naive"]
    assert curvature.rows[0][1] == (5.0, "5.0 ± 1.4")
    assert curvature.rows[1][1] == (50.0, "50")
    assert sharpness.rows[1][1] == (40.0, "40")
    plots = {plot.name: plot for plot in section.plots}  # type: ignore[attr-defined]
    assert set(plots) == {"curvature-comparison", "curvature-eigenvalues", "curvature-spectrum"}
    first, naive = plots["curvature-comparison"].traces
    assert first["x"] == [1.0] * 5
    assert naive["x"] == pytest.approx([10.0, 10.0, 20.0, 20.0, 1.0])
    assert first["mode"] == naive["mode"] == "markers"  # a bar on a logarithmic axis has no honest start
    assert [round(below) for below in naive["y"]] == [0, 1, 2, 3, 4] and first["y"] < naive["y"]


def test_one_model_says_up_to_which_rate_it_is_stable(tmp_path: Path) -> None:
    page, section = page_of(tmp_path, member("run", 0, 8.0))
    assert "stable below a learning rate of 0.25" in page  # 2 / 8
    assert "curvature-comparison" not in {plot.name for plot in section.plots}  # type: ignore[attr-defined]


def test_what_has_not_converged_is_said(tmp_path: Path) -> None:
    page, _ = page_of(tmp_path, member("run", 0, 8.0, converged=False))
    assert "Not converged: the eigenvalues of run are lower bounds" in page
    assert "(not converged)" in page


@pytest.mark.parametrize(("residual", "shown"), [(3e-3, "0.3 % (not converged)"), (4e-4, "0.04 %"), (1e-6, "0.01 %")])
def test_an_older_record_is_judged_by_its_residuals(tmp_path: Path, residual: float, shown: str) -> None:
    """Its error was the residual's square over the gap, much smaller, and it called that converged."""
    one = member("run", 0, 8.0)
    assert one.hessian is not None
    top = replace(one.hessian.eigenvalues[0], residual=8 * residual, error=8e-4)
    older = replace(one.hessian, eigenvalues=(top,), groups=None)
    page, section = page_of(tmp_path, replace(one, hessian=older))
    table = section.tables[0]  # type: ignore[attr-defined]
    row = dict(zip(table.heads, table.rows[0], strict=True))
    assert row["eigenvalue: numerical"][1] == shown
    assert ("Not converged" in page) == ("not converged" in shown)
    newer = replace(older, groups=16)  # whose search had a rule of its own
    assert newer.has_converged and newer.converged


def test_what_the_examples_do_is_told_apart_from_the_numerical_error(tmp_path: Path) -> None:
    one = member("run", 0, 8.0)
    page, section = page_of(tmp_path, one)
    table = section.tables[0]  # type: ignore[attr-defined]
    row = dict(zip(table.heads, table.rows[0], strict=True))
    assert row["eigenvalue: which examples"][1] == "18 %"  # 1.753 x 10 %: Student's t with 15 degrees of freedom
    assert row["eigenvalue: numerical"][1] == "0.01 %"
    assert row["trace: which examples"][1] == "18 %"
    assert row["trace: random vectors"][1] == "1.9 %"  # 1.895 x 1 %: with 7
    plots = {plot.name: plot for plot in section.plots}  # type: ignore[attr-defined]
    assert plots["curvature-eigenvalues"].traces[0]["error_y"]["array"][0] == pytest.approx(1.753 * 0.8, rel=1e-3)
    assert "90 % interval" in plots["curvature-spectrum"].note
    # A record of before.
    assert one.hessian is not None and one.hessian.density is not None
    old = replace(
        one.hessian, eigenvalues=tuple(replace(value, sampling_error=None) for value in one.hessian.eigenvalues),
        groups=None, trace_probes=None, trace_sampling_error=None,
        density=replace(one.hessian.density, lows=(), highs=()),
    )  # fmt: skip
    page, section = page_of(tmp_path, replace(one, hessian=old))
    table = section.tables[0]  # type: ignore[attr-defined]
    row = dict(zip(table.heads, table.rows[0], strict=True))
    assert row["eigenvalue: which examples"] == (None, "–") == row["trace: which examples"]
    assert row["trace: random vectors"][1] == "1.9 %"  # at least 8 vectors were used
    assert "one standard error" in page


def test_batch_norm_is_told(tmp_path: Path) -> None:
    one = member("run", 0, 8.0)
    assert one.hessian is not None
    page, _ = page_of(tmp_path, replace(one, hessian=replace(one.hessian, batch_norm="running statistics")))
    assert "Batch norm used its running statistics" in page


def test_parts_that_were_not_measured_are_left_out(tmp_path: Path) -> None:
    whole = member("<img src=x>", 0, 8.0)
    page, section = page_of(tmp_path, replace(whole, hessian=None))
    assert [table.title for table in section.tables] == ["Sharpness"]  # type: ignore[attr-defined]
    assert "<img src=x>" not in page
    _, section = page_of(tmp_path, replace(whole, sharpness=None))
    assert [table.title for table in section.tables] == ["Curvature"]  # type: ignore[attr-defined]
    assert whole.hessian is not None
    bare = replace(whole.hessian, trace=None, trace_error=None, density=None, eigenvalues=whole.hessian.eigenvalues[:1])
    _, section = page_of(tmp_path, replace(whole, hessian=bare, sharpness=None))
    assert section.plots == []  # type: ignore[attr-defined]


def test_infinite_sharpness_survives_the_file(tmp_path: Path) -> None:
    one = member("run", 0, 8.0, keskar=math.inf)
    page_of(tmp_path, one)
    section = to_section(Curvature.load(tmp_path))
    assert section.tables[1].rows[0][1] == (None, "infinite")


def test_workers_and_rehearsals_are_told(tmp_path: Path) -> None:
    trained = replace(member("lamb", 0, 8.0), workers=8, rehearsed=True)
    page, section = page_of(tmp_path, replace(member("one-worker", 0, 4.0), workers=1, rehearsed=False), trained)
    assert [row[0] for row in section.tables[0].rows] == ["one-worker", "lamb, 8 workers, rehearsed"]  # type: ignore[attr-defined]
    for plot in section.plots:  # type: ignore[attr-defined]
        assert "lamb, 8 workers, rehearsed" in {trace.get("name") for trace in plot.traces}
    assert "The sharpest is lamb, 8 workers, rehearsed" in page


def test_every_column_of_numbers_sorts_and_every_heading_differs(tmp_path: Path) -> None:
    _, section = page_of(tmp_path, member("a", 0, 9936.4), member("b", 0, 8.0))
    for table in section.tables:  # type: ignore[attr-defined]
        assert len(set(table.heads)) == len(table.heads)
        for row in table.rows:
            assert all(isinstance(cell, str) or cell[0] is not None for cell in row)
    assert section.tables[0].rows[0][1] == (9936.4, "9,936")  # type: ignore[attr-defined]
