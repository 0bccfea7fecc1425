"""``rueda train`` as a user meets it: where a run is put, and what is said of one that diverged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from commandline import environ, rueda, settle_in


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    settle_in(tmp_path / "here", monkeypatch)


def test_a_name_leads_out_of_no_folder(tmp_path: Path) -> None:
    text = Path("clouds.py").read_text()
    Path("evil.py").write_text(
        text + "from dataclasses import replace\ntask = replace(task, name='../../../evil/[bold]x')\n"
    )
    assert rueda("train", "evil.py", "--epochs", "1", "--json") == 0
    assert [one.name for one in tmp_path.iterdir()] == ["here"]
    assert [one.name.rsplit("-", 2)[0] for one in Path("runs").iterdir()] == ["evil-bold-x"]


def test_when_it_diverged_is_told_no_more_exactly_than_it_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert rueda("train", "clouds.py", "--set", "rate=1e39", "--epochs", "1") == 0
    told = "diverged: the loss is not finite in the epoch that ended at update 10; lower the rate or warm up"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("workers", ["1", "2", None])
def test_a_task_file_that_changes_the_directory(workers: str | None, tmp_path: Path) -> None:
    """The run lies where the command was typed, whoever executes the file; without --workers that is the command."""
    (tmp_path / "elsewhere").mkdir()
    more = f"import os\nos.chdir({str(tmp_path / 'elsewhere')!r})\n"
    if workers is None:
        more += "from dataclasses import replace\ntask = replace(task, recipe=task.recipe.change(workers=2))\n"
    Path("leaves.py").write_text(Path("clouds.py").read_text() + more)
    words = ["train", "leaves.py", "--epochs", "1", "--run", "runs/x", *([] if workers is None else ["-np", workers])]
    done = subprocess.run([sys.executable, "-m", "rueda", *words], env=environ(), capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "run: runs/x\n", done.stderr
    assert Path("runs", "x", "metrics.jsonl").is_file() and not list((tmp_path / "elsewhere").iterdir())
