"""What a result says about the code it was made with."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from rueda.records import environment as module
from rueda.records.environment import environment
from rueda.report.model import Section
from rueda.report.provenance import provenance
from rueda.world.cores import usable_cores


def git(*words: str) -> None:
    subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", *words], check=True, capture_output=True)


FILES = (
    "src/rueda/__init__.py",
    "src/rueda/labs/stored/__init__.py",
    "src/rueda/labs/stored/audits.json",
    "docs/results/a/study.json",
    "benchmarks/results/loop.json",
    "benchmarks/loop.py",
)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of Rueda; the current folder is elsewhere, in another repository."""
    for folder, files in (("own", FILES), ("elsewhere", ("train.py",))):
        top = tmp_path / folder
        for name in files:
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_text("1")
        monkeypatch.chdir(top)
        git("init", "-q")
        git("add", ".")
        git("commit", "-qm", f"first of {folder}")
    monkeypatch.setattr(module, "_PACKAGE", tmp_path / "own" / "src" / "rueda")
    return tmp_path / "own"


CHANGES = {
    "nothing": ((), True),
    "results": (
        ("docs/results/a/study.json", "benchmarks/results/loop.json", "src/rueda/labs/stored/audits.json"),
        True,
    ),
    "a new result": (("src/rueda/labs/stored/other.json", "docs/results/b/study.json"), True),
    "a file that git does not know": (("runs/a/metrics.jsonl",), True),
    "the code": (("src/rueda/__init__.py",), False),
    "code beside stored results": (("src/rueda/labs/stored/__init__.py",), False),
    "code that git does not know": (("src/rueda/new/code.py",), False),
    "a benchmark": (("benchmarks/loop.py",), False),
}


@pytest.mark.parametrize(("files", "clean"), CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("folder", [".", "docs/results", "../elsewhere"])
def test_a_modified_tree_is_told(
    files: tuple[str, ...], clean: bool, folder: str, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in files:
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text("2")
    monkeypatch.chdir(repository / folder)
    commit = environment()["commit"]
    assert len(commit.rstrip("+")) == 12 and commit.endswith("+") is not clean


def test_a_staged_change_counts(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "benchmarks" / "loop.py").write_text("2")
    monkeypatch.chdir(repository)
    git("add", ".")
    assert environment()["commit"].endswith("+")


def head_of(folder: Path) -> str:
    words = ["git", "-C", str(folder), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_is_that_of_rueda_or_of_the_folder_that_uses_an_installed_one(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = repository.parent / "elsewhere"
    (elsewhere / "train.py").write_text("2")  # not ours
    assert environment()["commit"] == head_of(repository)
    installed = elsewhere / ".venv" / "rueda"  # within the user's repository, which does not know it
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("1")
    monkeypatch.setattr(module, "_PACKAGE", installed)
    assert environment()["commit"] == f"{head_of(elsewhere)}+"


COMMANDS = {  # the program as Python names it, from a folder of the repository: the command that one types
    "console script": ("/usr/bin/rueda", "rueda --x 'a b'"),
    "python -m rueda": ("src/rueda/__main__.py", "rueda --x 'a b'"),
    "python -m module": ("src/rueda/labs/lab_2/audits.py", "python -m rueda.labs.lab_2.audits --x 'a b'"),
    "benchmark": ("benchmarks/loop.py", "python benchmarks/loop.py --x 'a b'"),
    "own script": ("../elsewhere/train.py", "python train.py --x 'a b'"),
    "script of another folder": ("../secret/train.py", "python train.py --x 'a b'"),
}


@pytest.mark.parametrize(("program", "command"), COMMANDS.values(), ids=COMMANDS)
def test_the_command_is_one_that_can_be_typed(
    program: str, command: str, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(repository / program), "--x", "a b"])
    assert environment()["command"] == command


def test_the_command_of_a_module(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, expected in (("mine.train", "python -m mine.train"), ("mine.__main__", "python -m mine")):
        monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec(name, None, origin="/mine/train.py"))
        monkeypatch.setattr(sys, "argv", ["/mine/train.py"])
        assert environment()["command"] == expected
    monkeypatch.setattr(sys, "argv", ["-c", "1"])
    assert environment()["command"] == "python -c 1"


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
    monkeypatch.setattr(module, "_PACKAGE", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert environment()["commit"] is None
