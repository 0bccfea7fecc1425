"""What is shown: a bar and lines on a terminal, plain lines elsewhere, nothing when silent."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rueda.records import Recipe
from rueda.study import study_techniques
from rueda.study.planned_run import PlannedRun, execute
from tinytask import tiny_task


@pytest.mark.parametrize("terminal", [True, False])
def test_every_run_has_its_line(
    terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm" if terminal else "dumb")
    study_techniques(tiny_task(), 4, rows=["naive", "lamb"], epochs=1, folder=tmp_path)
    shown = capsys.readouterr().err
    assert "1/2  naive, seed 0: test accuracy" in shown and "2/2  lamb, seed 0: test accuracy" in shown
    assert ("epochs" in shown) is terminal  # the bar of the running row
    study_techniques(tiny_task(), 4, rows=["naive", "lamb"], epochs=1, folder=tmp_path)
    again = capsys.readouterr().err
    assert terminal or again == "2 of 2 runs are finished already\n"
    study_techniques(tiny_task(), 4, rows=["naive"], epochs=1, folder=tmp_path, progress=False)
    assert capsys.readouterr().err == ""


def test_a_limit_of_the_instruction_set_is_said_once_for_all_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a run prints is not shown, so the study says it before the first one starts."""
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(
        "rueda.world.instruction_sets.limits",
        lambda environ, precision: {"ONEDNN_MAX_CPU_ISA": "AVX2"} if precision == "bf16" else {},
    )
    seen = []
    monkeypatch.setattr(
        "rueda.jobs.run_many", lambda runs, *rest, **callbacks: seen.append(os.environ.get("ONEDNN_MAX_CPU_ISA"))
    )
    for precision, limit in (("float32", None), ("bf16", "AVX2")):
        runs = [
            PlannedRun("naive", seed, Recipe(precision=precision, seed=seed), tmp_path / str(seed)) for seed in (0, 1)
        ]
        assert execute("linear", runs, 2, progress=True, finished=lambda: None) is None
        assert seen.pop() == limit
        assert capsys.readouterr().err.count("limited to ONEDNN_MAX_CPU_ISA=AVX2") == (limit is not None)
