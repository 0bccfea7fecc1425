"""``rueda archive`` as a user meets it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from commandline import rueda
from report.samples import write_study
from rueda.records.study import Study


def test_a_study_in_two_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_study(Path("runs", "study"))
    assert rueda("archive", "runs/study", "kept") == 0
    assert capsys.readouterr().out.startswith("archive: kept/runs.jsonl with ")
    assert sorted(file.name for file in Path("kept").iterdir()) == ["runs.jsonl", "study.json"]
    assert rueda("report", "kept", "--markdown") == 0
    assert "one-worker" in capsys.readouterr().out
    study = Study.load(Path("runs", "study"))
    for folder, checksum in (("kept", "a"), ("runs/study", "b")):
        replace(study, task_file=checksum).save(Path(folder, "study.json"))
    assert rueda("archive", "runs/study", "kept") == 2
    assert "kept holds a study of another version of the task file" in capsys.readouterr().err
    assert rueda("archive", "runs/nothing", "kept") == 2
    error = capsys.readouterr().err
    assert "expected a study" in error and len(error.splitlines()) == 1
