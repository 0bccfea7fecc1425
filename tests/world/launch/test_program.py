from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import rueda
from rueda.errors import LaunchError
from rueda.world.cores import usable_cores
from rueda.world.launch.environment import EnvironmentAdditions, for_workers, forwarded, python_path
from rueda.world.launch.hosts import Host
from rueda.world.launch.program import is_rueda, resolve

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
    names = ["PATH", "RUEDA_X", "NCCL_X", "GLOO_X", "TORCH_X", "OMP_X", "CUDA_X", "LD_LIBRARY_PATH"]
    names += ["PYTORCH_X", "TORCHINDUCTOR_X", "HIP_X", "ROCR_X", "UCX_X", "FI_X"]
    kept = dict.fromkeys(names, "1")
    assert forwarded({**kept, "HOME": "1", "AWS_SECRET": "1", "RANK": "1", "SSH_AUTH_SOCK": "1"}) == kept
    assert forwarded({**kept, "MINE_A": "1", "YOURS_B": "1"}, ["MINE_"]) == {**kept, "MINE_A": "1"}


def test_additions_are_computed_for_each_worker() -> None:
    hosts = [Host(name="a", slots=2), Host(name="b", slots=1)]

    def per_worker(hosts: Sequence[Host], node: int, local_rank: int, rank: int) -> dict[str, str]:
        return {"WHERE": f"{hosts[node].name} {local_rank} {rank}"}

    additions = EnvironmentAdditions(per_worker=per_worker)
    assert additions.of_host(hosts, 0) == [{"WHERE": "a 0 0"}, {"WHERE": "a 1 1"}]
    assert additions.of_host(hosts, 1) == [{"WHERE": "b 0 2"}]
    assert EnvironmentAdditions().of_host(hosts, 0) == [{}, {}]


def test_folders_of_packages_come_last_and_once() -> None:
    folder = str(Path(rueda.__file__).parent / "cli")
    once = python_path({"PYTHONPATH": "lib"}, ["rueda.cli"])
    assert once == {"PYTHONPATH": os.pathsep.join(["lib", folder])} == python_path(once, ["rueda.cli"])
    # No empty entry, which would stand for the working directory.
    assert python_path({}, ["rueda.cli"]) == {"PYTHONPATH": folder}


@pytest.mark.parametrize(
    ("module", "expected"),
    [("rueda", True), ("rueda.hvd", False), ("rueda.hvd.runner.worker", False), ("x", False)],
)
def test_modules_that_run_the_users_script_are_not_ruedas_commands(module: str, expected: bool) -> None:
    for argv in (["python", "-m", module, "train.py"], resolve([module, "train.py"], module=True)):
        assert is_rueda(argv) is expected
    assert not is_rueda(["python", module])
    assert not is_rueda(["python"])
