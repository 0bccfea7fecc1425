"""Files of the workers other than rank 0: private, and found again."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch

from rueda.check.patches import Patches
from rueda.check.scale.files import PrivateFiles


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PrivateFiles]:
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_MODE", "MLFLOW_TRACKING_URI", "COMET_MODE", "NEPTUNE_MODE"):
        monkeypatch.setenv(name, "")
    Path("there.txt").write_text("first\n")
    patches, files = Patches(), PrivateFiles([tmp_path])
    files.install(patches)
    yield files
    patches.undo()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["there.txt"], "a file was written in its place"
    assert Path("there.txt").read_text() == "first\n"


def test_every_way_to_write_is_redirected_and_read_again(private: PrivateFiles) -> None:
    os.makedirs("runs/a")
    Path("notes.md").write_text("note")
    with open("log.txt", "w") as file:
        file.write("line")
    with open("there.txt", "a") as file:
        file.write("second\n")
    torch.save({"x": torch.ones(2)}, "runs/a/model.pt")
    torch.save({"x": torch.ones(3)}, Path("best.pt"))
    numpy.save("array.npy", numpy.arange(3))
    handler = logging.FileHandler("train.log")
    handler.emit(logging.LogRecord("x", logging.INFO, "", 0, "message", (), None))
    handler.close()
    assert Path("notes.md").read_text() == "note" and Path("notes.md").exists()
    assert Path("there.txt").read_text() == "first\nsecond\n"
    assert torch.load("runs/a/model.pt")["x"].tolist() == [1, 1] and os.path.isfile("best.pt")
    assert numpy.load("array.npy").tolist() == [0, 1, 2]
    assert Path("train.log").read_text() == "message\n"
    assert {"notes.md", "log.txt", "there.txt", "best.pt", "array.npy"} <= set(private.held_back)


def test_files_are_moved_and_removed_in_the_private_folder(private: PrivateFiles) -> None:
    Path("a.tmp").write_text("a")
    os.replace("a.tmp", "a.txt")
    assert Path("a.txt").read_text() == "a" and not Path("a.tmp").exists()
    os.remove("there.txt")
    assert not os.path.exists("there.txt")
    with pytest.raises(FileNotFoundError):
        open("there.txt")  # noqa: SIM115
    Path("folder").mkdir()
    Path("folder/b").write_text("b")
    shutil.rmtree("folder")
    assert not Path("folder").exists()
    with pytest.raises(FileExistsError):
        Path("again").mkdir()
        Path("again").mkdir()


def test_devices_and_temporary_files_are_left_alone(private: PrivateFiles) -> None:
    with open(os.devnull, "w") as file:
        file.write("x")
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("x")
        file.flush()
        assert Path(file.name).read_text() == "x"
    assert private.held_back == []
