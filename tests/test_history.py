"""The subjects of commits are short enough to be read in a list."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LONGEST = 72
SINCE = "613902fd17"
"""older commits have twelve longer subjects; history stays as it is"""


def git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)


def too_long(subjects: list[str]) -> list[str]:
    return [subject for subject in subjects if len(subject) > LONGEST]


def test_subjects_of_commits_are_short() -> None:
    try:
        known = git("merge-base", "--is-ancestor", SINCE, "HEAD")
    except FileNotFoundError:
        pytest.skip("there is no git")
    if known.returncode:
        pytest.skip(f"no repository whose history has {SINCE}")
    assert too_long(["x" * 73, "x" * 72]) == ["x" * 73]
    assert too_long(git("log", "--format=%s", f"{SINCE}..HEAD").stdout.splitlines()) == []
