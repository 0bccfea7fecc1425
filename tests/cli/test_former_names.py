"""``rueda study TASK --throughput`` and its siblings: the names of version 0.1, for one version more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commandline import rueda, settle_in


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle_in(tmp_path, monkeypatch)


WORKING = {
    "study clouds.py --throughput --batches 8 --json": ("rueda throughput", "throughput"),
    "study --steps-to-target clouds.py --target-accuracy 0.6 --batches 96 --json": (
        "rueda steps-to-target",
        "steps-to-target",
    ),
    "study linear --gd --seeds 2 --batches 100 --json": ("rueda gradient-descent", "gd"),
    "study --seeds 2 --gd --batches 100 linear --json": ("rueda gradient-descent", "gd"),
}


@pytest.mark.parametrize("words", WORKING)
def test_a_former_name_works_and_says_the_new_one(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, kind = WORKING[words]
    assert rueda(*words.split()) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["kind"] == kind
    assert shown.err.endswith(f"; run: {command}\n") and len(shown.err.splitlines()) == 1


REFUSED = {
    "study clouds.py --throughput --rows naive": "No such option: --rows",
    "study clouds.py --throughput --seeds 1": "No such option: --seeds",
    "study clouds.py --steps-to-target --workers 8": "No such option: --workers",
    "study clouds.py --steps-to-target --confirm": "No such option: --confirm",
    "study linear --gd --set rate=5": "No such option: --set",
    "study linear --gd --epochs 1": "No such option: --epochs",
    "study linear --gd --jobs 1": "No such option: --jobs",
    "study clouds.py --batches 8": "No such option: --batches",
    "study clouds.py --target-accuracy .9": "No such option: --target-accuracy",
    "study clouds.py --gd": "run: rueda gradient-descent",
    "study linear --gd --throughput": "run one at a time",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_was_refused_is_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert rueda(*words.split()) == 2
    assert REFUSED[words] in capsys.readouterr().err
    assert not Path("runs").exists()


def test_help_names_only_the_new_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert rueda("study", "--help") == 0
    shown = capsys.readouterr().out
    assert "--rows" in shown and not any(name in shown for name in ("--throughput", "--steps-to-target", "--gd"))
    assert rueda("--help") == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in ("throughput", "steps-to-target", "gradient-descent"))
