"""Checkpoints: whole or noticed; never code; the last k and the best."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from rueda.errors import CheckpointError, RunError
from rueda.train.checkpoint import (
    best_checkpoint,
    latest_checkpoint,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)


def fill(folder: Path, steps: int, best: int = 0, keep: int = 3) -> None:
    for step in range(1, steps + 1):
        save_checkpoint(
            folder, {"step": step, "w": torch.full((100,), float(step))}, step=step, keep=keep, best=step == best
        )


def test_the_last_and_the_best_stay(tmp_path: Path) -> None:
    fill(tmp_path, 6, best=2)
    assert [file.name[:13] for file in list_checkpoints(tmp_path)] == [f"step-{step:08d}" for step in (6, 5, 4)]
    best = best_checkpoint(tmp_path)
    assert best is not None and load_checkpoint(best)["step"] == 2
    fill(tmp_path, 4, best=4)
    best = best_checkpoint(tmp_path)
    assert best is not None and load_checkpoint(best)["step"] == 4
    assert len(list(tmp_path.glob("best.*"))) == 1
    assert not list(tmp_path.glob(".*"))


DAMAGE = {
    "cut short": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "a flipped bit": lambda content: content[:50] + bytes([content[50] ^ 1]) + content[51:],
    "zeros, as after a power cut": lambda content: bytes(len(content)),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_noticed_and_the_one_before_used(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    fill(tmp_path, 3)
    newest = list_checkpoints(tmp_path)[0]
    newest.write_bytes(damage(newest.read_bytes()))
    with pytest.raises(CheckpointError, match="truncated or damaged"):
        load_checkpoint(newest)
    with pytest.warns(RuntimeWarning, match="it is skipped"):
        found = latest_checkpoint(tmp_path)
    assert found is not None and found[1]["step"] == 2


def test_only_intact_files_count(tmp_path: Path) -> None:
    """Of three kept ones two are damaged afterwards: they take no place, and the intact one stays beside the new."""
    fill(tmp_path, 3)
    for file in list_checkpoints(tmp_path)[:2]:
        file.write_bytes(b"")
    save_checkpoint(tmp_path, {"step": 4}, step=4, keep=3)
    assert [load_checkpoint(file)["step"] for file in list_checkpoints(tmp_path)] == [4, 1]
    damaged, _ = list_checkpoints(tmp_path)
    damaged.write_bytes(b"")
    (tmp_path / "step-00000003.0123456789abcdef.pt").mkdir()  # no file at all
    save_checkpoint(tmp_path, {"step": 2}, step=2, keep=3)  # resumed from step 1: the damaged step 4 is not in its way
    assert [load_checkpoint(file)["step"] for file in list_checkpoints(tmp_path)] == [2, 1]


def test_nothing_left_is_none(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path) is None
    (tmp_path / ".step-00000001.part").write_bytes(b"half")
    fill(tmp_path, 1)
    assert [file.name[:4] for file in tmp_path.iterdir()] == ["step"]  # the left-over is gone


class Evil:
    def __reduce__(self) -> object:
        return (Path("evil").write_text, ("was here",))


def test_code_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rueda.train.checkpoint import _checksum

    monkeypatch.chdir(tmp_path)
    content = pickle.dumps(Evil())
    file = tmp_path / f"step-00000001.{_checksum(content)}.pt"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(file)
    assert not (tmp_path / "evil").exists()


def test_wrong_files(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="expected a name like"):
        load_checkpoint(tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match="No such file"):
        load_checkpoint(tmp_path / "step-00000001.0123456789abcdef.pt")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        save_checkpoint(tmp_path / "file" / "below", {}, step=1, keep=1)
