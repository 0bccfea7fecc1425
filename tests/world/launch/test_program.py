from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rueda.errors import LaunchError
from rueda.world.cores import usable_cores
from rueda.world.launch.environment import for_workers, forwarded
from rueda.world.launch.program import resolve

ODD = ["--lr", "a b", "$HOME", "'", '"', "ü", "a\nb", "-np", "*"]


def test_what_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    assert resolve(["train.py", *ODD]) == [sys.executable, "-u", "train.py", *ODD]
    assert resolve(["tool.train", *ODD], module=True) == [sys.executable, "-u", "-m", "tool.train", *ODD]
    assert resolve([str(tool), *ODD]) == [str(tool), *ODD]
    assert resolve(["sh", "-c", "true"])[0].endswith("/sh")
    assert resolve([sys.executable, "train.py"]) == [sys.executable, "train.py"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert resolve(["python", "train.py"]) == [sys.executable, "train.py"]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (["missing.py"], "does not exist"),
        (["python", "missing.py", "-v"], "does not exist"),
        (["folder.py"], "is a directory"),
        (["folder"], "is a directory"),
        (["plain"], "there is no program plain"),
        (["./plain"], "not executable"),
        (["no-such-program"], "there is no program"),
    ],
)
def test_what_is_missing(program: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "plain").write_text("")
    if program == ["plain"]:
        (tmp_path / "plain").unlink()
    with pytest.raises(LaunchError, match=words):
        resolve(program)


def test_the_workers_environment() -> None:
    given = for_workers({}, 1)
    assert given["OMP_NUM_THREADS"] == str(usable_cores())
    assert for_workers({}, 10_000)["OMP_NUM_THREADS"] == "1"
    assert given["PYTHONUNBUFFERED"] == "1"
    if sys.platform.startswith("linux"):
        assert "MALLOC_TRIM_THRESHOLD_" in given
    assert "OMP_NUM_THREADS" not in for_workers({"OMP_NUM_THREADS": "5"}, 1)


def test_only_named_variables_travel() -> None:
    names = ["PATH", "RUEDA_X", "HOROVOD_X", "NCCL_X", "GLOO_X", "TORCH_X", "OMP_X", "CUDA_X", "LD_LIBRARY_PATH"]
    kept = dict.fromkeys(names, "1")
    assert forwarded({**kept, "HOME": "1", "AWS_SECRET": "1", "RANK": "1", "SSH_AUTH_SOCK": "1"}) == kept
