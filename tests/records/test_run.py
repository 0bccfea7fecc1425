"""The run folder: rows that can be read while they grow, files that are whole or absent."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rueda.errors import RunError
from rueda.files.atomic import write_atomically
from rueda.records import Recipe, Row, Run


def row(step: int, loss: float = 1.0, kind: str = "epoch") -> Row:
    return Row(
        kind=kind, epoch=1, step=step, examples=step * 8, seconds=1.0, train_loss=loss, train_accuracy=0.5,
        images_per_second=10.0, rate=0.1, global_batch=8,
    )  # fmt: skip


def test_a_folder_may_be_a_string(tmp_path: Path) -> None:
    assert Run(str(tmp_path)) == Run(tmp_path) and Run(str(tmp_path)).checkpoints == tmp_path / "checkpoints"  # type: ignore[arg-type]


def test_rows_survive_a_torn_line(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.begin(Recipe(batch=8), "linear")
    for step in (1, 2, 3):
        run.append(row(step, kind="step" if step == 2 else "epoch"))
    with open(run.metrics_file, "a") as stream:
        stream.write('{"kind": "epo')  # killed while it wrote
    assert [item["step"] for item in run.rows()] == [1, 2, 3]
    assert [item["step"] for item in run.rows("epoch")] == [1, 3]
    run.forget_after(1)
    assert [item["step"] for item in run.rows()] == [1]
    assert run.metrics_file.read_bytes().endswith(b"}\n")  # the torn line is gone
    assert run.recipe() == Recipe(batch=8)
    about = run.environment()
    assert about["task"] == "linear" and about["rehearsed"] is False and about["versions"]["torch"]


def test_not_finite_is_null(tmp_path: Path) -> None:
    text = row(1, loss=float("nan")).to_json()
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name))["train_loss"] is None


def test_damage_and_absence_are_told(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with pytest.raises(RunError, match=r"metrics\.jsonl"):
        run.rows()
    with pytest.raises(RunError, match=r"environment\.json"):
        run.environment()
    run.metrics_file.write_text('{"step": 1}\nrubbish\n{"step": 2}\n')
    with pytest.raises(RunError, match="line 2"):
        run.rows()


def test_atomic_write_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "file"
    write_atomically(file, b"old")

    def fail(stream: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(RunError, match="No space left"):
        write_atomically(file, fail)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(file, lambda stream: (_ for _ in ()).throw(KeyboardInterrupt()))
    assert file.read_bytes() == b"old"
    assert os.listdir(file.parent) == ["file"]


def test_a_full_disk(tmp_path: Path) -> None:
    """A real one: the kernel's own /dev/full."""
    if not os.path.exists("/dev/full"):
        pytest.skip("/dev/full is a device of Linux")
    run = Run(tmp_path)
    run.metrics_file.symlink_to("/dev/full")
    with pytest.raises(RunError, match="No space left"):
        run.append(row(1))
