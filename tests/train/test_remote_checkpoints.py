"""Checkpoints at a URL: the same files as in a folder. A real S3 server is in ``tests/frameworks``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import rueda
from commandline import rueda as rueda_command
from rueda.errors import MissingExtra, RunError
from rueda.files.remote import RemotePath, any_path
from rueda.records import Recipe, Run
from rueda.train.checkpoint import best_checkpoint, list_checkpoints, step_of
from tinytask import network, parameters, tiny_task

RECIPE = Recipe(batch=12, epochs=2, rate=0.05, checkpoint_every=6)


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A storage on which an object is there as a whole, and one on which a file is renamed."""
    import fsspec

    yield "memory://bucket/run" if request.param == "memory" else f"file://{tmp_path}/storage/run"
    fsspec.filesystem("memory").store.clear()


def test_a_path_has_the_methods_that_checkpoints_need(url: str) -> None:
    folder = any_path(url)
    assert isinstance(folder, RemotePath)
    file = folder / "a.pt"
    assert not file.exists() and list(folder.glob("*.pt")) == []
    file.write_bytes(b"one")
    (folder / "b.txt").write_bytes(b"two")
    (folder / "deeper" / "c.pt").write_bytes(b"three")
    assert list(folder.glob("*.pt")) == [file] and file.read_bytes() == b"one" and file.stat().st_size == 3
    file.copy_to("d.pt")
    assert sorted(folder.glob("*.pt")) == [file, file.with_name("d.pt")] and file.stat().st_mtime_ns > 0
    file.unlink()
    file.unlink(missing_ok=True)
    assert not file.exists() and file.parent == folder and file.name == "a.pt" and len({folder, any_path(url)}) == 1


def test_a_run_is_saved_and_resumed(url: str, tmp_path: Path) -> None:
    whole = rueda.fit(tiny_task(), RECIPE, progress=False)
    rueda.fit(tiny_task(), RECIPE.change(epochs=1), folder=tmp_path / "run", checkpoints=url, progress=False)
    folder = Run(tmp_path / "run").checkpoints
    assert str(folder) == url and [step_of(file) for file in list_checkpoints(folder)] == [20, 18]
    assert best_checkpoint(folder) is not None and not list(folder.glob("*.part"))
    resumed = rueda.fit(tiny_task(), RECIPE, folder=tmp_path / "run", resume=True, progress=False)
    assert torch.equal(parameters(whole.model), parameters(resumed.model))


def test_a_folder_that_holds_checkpoints_is_named(url: str, tmp_path: Path) -> None:
    rueda.fit(tiny_task(), RECIPE.change(epochs=1), folder=tmp_path / "run", checkpoints=url, progress=False)
    for where in (url, str(tmp_path / "run" / "other")):
        if where != url:
            rueda.fit(tiny_task(), RECIPE.change(epochs=1), folder=tmp_path / "one", checkpoints=where, progress=False)
        with pytest.raises(RunError) as caught:
            rueda.fit(tiny_task(), RECIPE, folder=tmp_path / "new", checkpoints=where, progress=False)
        assert str(caught.value) == (
            f"{where} holds checkpoints of another run; continue it with resume=True (--resume), or choose another "
            "folder for the checkpoints"
        )
    with pytest.raises(RunError, match=f"^{tmp_path}/run holds a run already; continue it"):
        rueda.fit(tiny_task(), RECIPE, folder=tmp_path / "run", checkpoints=url, progress=False)


@pytest.mark.parametrize("words", [[], ["--workers", "2"]], ids=["alone", "two workers"])
def test_memory_is_refused_since_it_ends_with_the_process(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert rueda_command("train", "linear", "--checkpoints", "memory://a/b", *words) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err == (
        "rueda: memory://a/b: the memory of a process ends with it, and with it every checkpoint; give a folder, or a "
        "URL such as s3://bucket/folder\n"
    )
    assert not list(tmp_path.iterdir())
    with pytest.raises(RunError, match="memory of a process"):
        rueda.fit(tiny_task(), RECIPE, folder=tmp_path / "run", checkpoints="memory://a/b", workers=2, progress=False)


def test_another_folder_of_this_machine(tmp_path: Path) -> None:
    """A large disk for the checkpoints, the run folder elsewhere."""
    rueda.fit(tiny_task(), RECIPE, folder=tmp_path / "run", checkpoints=tmp_path / "large", progress=False)
    assert Run(tmp_path / "run").checkpoints == tmp_path / "large" and len(list_checkpoints(tmp_path / "large")) == 2
    with pytest.raises(RunError, match=r"checkpoints: expected a run folder beside it, got None; pass folder="):
        rueda.fit(tiny_task(), RECIPE, checkpoints=tmp_path / "large", progress=False)


def test_a_folder_that_cannot_hold_checkpoints_is_told_before_the_first_update(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot write into .*inner: Not a directory; choose another folder"):
        rueda.fit(tiny_task(), RECIPE, folder=tmp_path / "run", checkpoints=tmp_path / "file" / "inner", progress=False)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_mistakes_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match=r"nonsense://x/y: .*; give a path, or a URL such as s3://bucket/folder"):
        rueda.Checkpoint("nonsense://x/y", model=network()).resume()
    if os.geteuid() != 0:
        with pytest.raises(RunError, match="cannot reach file:///proc/nothing"):
            rueda.Checkpoint("file:///proc/nothing", model=network()).save(1)

    def absent(kind: str) -> None:  # what fsspec raises where s3fs is not installed
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.filesystem", absent)
    with pytest.raises(MissingExtra, match=r"s3fs is needed but not installed: run `pip install 'rueda\[remote\]'`"):
        rueda.Checkpoint("s3://bucket/run", model=network()).resume()


@pytest.mark.parametrize(
    ("given", "is_remote"),
    [("s3://b/c", True), ("gs://b", True), ("runs/a", False), ("/tmp/a", False), ("C:/a", False), (Path("a"), False)],
)
def test_what_is_a_url(given: Any, is_remote: bool) -> None:
    assert isinstance(any_path(given), RemotePath) == is_remote


@pytest.mark.parametrize("given", ["s3://", "s3:///folder", "s3:/bucket/folder", "S3://", "memory://"])
def test_a_url_without_its_bucket_is_no_folder_of_this_machine(given: str) -> None:
    """``s3://$BUCKET`` with a variable that is not set would keep the checkpoints on a disk that is given back."""
    with pytest.raises(RunError, match="expected a URL with its bucket, such as s3://bucket/folder; correct it"):
        any_path(given)
