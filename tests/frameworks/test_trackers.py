"""Trackers on the real libraries, offline: MLflow in a local database, Weights & Biases in the run folder."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import rueda
from rueda.records import Run
from rueda.train.trackers.tracker import numbers
from tinytask import tiny_task

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # theirs
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def train_twice(folder: Path, tracker: str) -> Run:
    """Train for one epoch, and resume for a second one."""
    task = tiny_task()
    for epochs in (1, 2):
        recipe = task.recipe.change(epochs=epochs)
        rueda.fit(task, recipe, folder=folder, resume=epochs == 2, progress=False, track=tracker)
    return Run(folder)


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    pytest.importorskip("sqlalchemy", reason="mlflow is installed without its database")
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = train_twice(tmp_path / "run", "mlflow")
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("clouds")
    assert experiment is not None
    [found] = client.search_runs([experiment.experiment_id])
    assert found.info.run_name == "run" and found.info.status == "FINISHED"
    assert found.data.params["batch"] == str(run.recipe().batch)
    rows = run.rows("epoch")
    history = client.get_metric_history(found.info.run_id, "train_loss")
    assert [(each.step, each.value) for each in history] == [(row.step, row.train_loss) for row in rows]
    assert numbers(rows[-1]).items() <= found.data.metrics.items()


def records(log: bytes) -> Iterator[bytes]:
    """Read the records of a file of Weights & Biases: LevelDB's log format after a header of 7 bytes."""
    place, record = 7, b""
    while place + 7 <= len(log):
        _, length, kind = struct.unpack_from("<IHB", log, place)
        record += log[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield record
            record = b""
        if 32768 - place % 32768 < 7:  # the end of a block is padding
            place += 32768 - place % 32768


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    from wandb.proto import wandb_internal_pb2

    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    run = train_twice(tmp_path / "run", "wandb")
    wanted = [row.train_loss for row in run.rows("epoch")]
    deadline = time.monotonic() + 30
    while True:  # a process of W&B writes the files, and may still do so after finish()
        identities, losses = set(), []
        for file in sorted((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")):
            for data in records(file.read_bytes()):
                record = wandb_internal_pb2.Record()
                record.ParseFromString(data)
                identities |= {record.run.run_id} - {""}
                items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                losses += [float(items["train_loss"])] if "train_loss" in items else []
        if len(losses) >= len(wanted) or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert identities == {(tmp_path / "run" / "wandb-run").read_text().strip()}
    assert losses == pytest.approx(wanted)
