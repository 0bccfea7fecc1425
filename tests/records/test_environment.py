"""What a result says about the code it was made with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rueda.records.environment import environment
from rueda.report.model import Section
from rueda.report.provenance import provenance
from rueda.world.cores import usable_cores


def git(*words: str) -> None:
    subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", *words], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    git("init", "-q")
    for name in ("src/code.py", "docs/results/a/study.json", "benchmarks/results/loop.json", "benchmarks/loop.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    git("add", ".")
    git("commit", "-qm", "first")
    return tmp_path


CHANGES = {
    "nothing": ((), True),
    "results": (("docs/results/a/study.json", "benchmarks/results/loop.json"), True),
    "a file that git does not know": (("runs/a/metrics.jsonl",), True),
    "the code": (("src/code.py",), False),
    "a benchmark": (("benchmarks/loop.py",), False),
}


@pytest.mark.parametrize(("files", "clean"), CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("folder", [".", "docs/results"])
def test_a_modified_tree_is_told(
    files: tuple[str, ...], clean: bool, folder: str, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in files:
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text("2")
    monkeypatch.chdir(repository / folder)
    commit = environment()["commit"]
    assert len(commit.rstrip("+")) == 12 and commit.endswith("+") is not clean


def test_a_staged_change_counts(repository: Path) -> None:
    (repository / "src" / "code.py").write_text("2")
    git("add", ".")
    assert environment()["commit"].endswith("+")


def test_a_result_names_the_usable_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    machine = environment()["machine"]
    assert (machine["cores"], machine["usable_cores"]) == (64, 2 if usable_cores() == 2 else 1)
    text = provenance(Section(title="", task="", environments=[{"machine": machine}]))
    assert f"{machine['usable_cores']} of 64 cores" in text
    del machine["usable_cores"]  # as in older records
    assert ", 64 cores" in provenance(Section(title="", task="", environments=[{"machine": machine}]))


def test_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert environment()["commit"] is None
