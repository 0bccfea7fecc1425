"""The run folder: rows that can be read while they grow, files that are whole or absent."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from rueda.errors import RunError
from rueda.files.atomic import write_atomically
from rueda.records import Recipe, Row, Run
from rueda.records.profile import NoiseScale
from rueda.records.run import NoiseRow
from rueda.records.task_file import TaskFile

RESULTS = Path(__file__).parents[2] / "docs" / "results"


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
    assert [item.step for item in run.rows()] == [1, 2, 3]
    assert [item.step for item in run.rows("epoch")] == [1, 3]
    with pytest.raises(ValueError, match=r"expected epoch or step, got 'noise'; .* noise_rows\(\)"):
        run.rows("noise")
    run.forget_after(1)
    assert [item.step for item in run.rows()] == [1]
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


def test_atomic_writing_goes_into_pipes_and_through_links(tmp_path: Path) -> None:
    """As root, a report written to /dev/null replaced the device by a file."""
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, b"page")
        assert os.read(reader, 10) == b"page" and pipe.is_fifo()
    finally:
        os.close(reader)
    file.write_bytes(b"old")
    link.symlink_to("file")
    write_atomically(link, b"new")
    assert link.is_symlink() and file.read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "pipe"]


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


NOISE = NoiseRow(
    epoch=1, examples=64, seconds=1.0, global_batch=8,
    noise=NoiseScale(value=100.0, low=50.0, high=math.inf, variance=10.0, square=0.1, step=8, steps=8),
)  # fmt: skip


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    run = Run(tmp_path)
    written = [row(1), row(2, kind="step")]
    run.append_all([written[0], NOISE, written[1]])
    assert run.all_rows() == (written, [NOISE]) and (run.rows(), run.noise_rows()) == (written, [NOISE])
    assert run.noise_scales() == [NOISE.noise] and run.noise_scales("0") == []
    assert written[1].mean_images_per_second == 16.0


def test_rows_of_other_versions(tmp_path: Path) -> None:
    run = Run(tmp_path)
    data = json.loads(row(3).to_json())
    older = {name: value for name, value in data.items() if not name.startswith(("noise", "rehearsed"))}
    newer = {**data, "added_later": [1, 2]}
    later = {"kind": "a kind of tomorrow", "step": 4}
    run.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in (older, newer, later)))
    assert run.rows() == [row(3), row(3)]
    run.forget_after(3)  # keeps what it does not know
    assert json.loads(run.metrics_file.read_text().splitlines()[1])["added_later"] == [1, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": "nine"}, "line 2: row.step: expected int, got 'nine'"),
        ({"step": None}, "line 2: row.step: expected int, got None"),
        ({"rehearsed": 1}, "line 2: row.rehearsed: expected bool, got 1"),
        ({"test_accuracy": [0.5]}, r"line 2: row.test_accuracy: expected float, got \[0.5\]"),
    ],
)
def test_a_damaged_row_is_one_line(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.append(row(1))
    with open(run.metrics_file, "a") as stream:
        stream.write(json.dumps({**json.loads(row(2).to_json()), **changes}) + "\n")
    with pytest.raises(RunError, match=message) as error:
        run.rows()
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("file", sorted(RESULTS.rglob("metrics.jsonl")), ids=lambda file: file.parent.name)
def test_the_published_runs_can_be_read(file: Path) -> None:
    rows, _ = Run(file.parent).all_rows()
    assert rows and rows[-1].epoch >= 1


def test_the_task_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("task = 1")
    source = TaskFile.read(file)
    run = Run(tmp_path / "run")
    run.begin(Recipe(), "mine", task_file=source)
    assert run.task_file() == source and run.task_name() == str(file) and not source.has_changed()
    file.write_text("task = 2")
    assert source.has_changed()
    file.unlink()
    with pytest.raises(RunError, match=r"its task file .*mine\.py is no longer there; put it back, or name the task"):
        run.task_name()
    run.begin(Recipe(), "linear")  # a built-in task has no file
    assert run.task_file() is None and run.task_name() == "linear"
    (run.folder / "environment.json").write_text('{"task": "linear"}')  # of an older Rueda
    assert run.task_file() is None and run.task_name() == "linear"
    (run.folder / "environment.json").write_text('{"task_file": {"path": 3}}')
    with pytest.raises(RunError, match=r"environment\.json: task_file\.path: expected str, got 3; the file is damaged"):
        run.task_file()
