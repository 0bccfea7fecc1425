"""examples/trainings/fine-tuning, on the real transformers and datasets: it trains the same on 1, 2 and 3 workers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from examples_here import run_on_two
from harness import workers
from rueda.world import current
from trainings_here import TRAININGS, check_same_training

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("datasets", reason="datasets is not installed")

NAME = "fine-tuning"
OPTIONS = ["--batch-size", "12", "--epochs", "2"]


def saved(folder: Path) -> Any:
    from safetensors.torch import load_file

    return load_file(folder / "tuned" / "model.safetensors")


def same_training(folder: Path) -> None:
    """Without dropout, which draws other random numbers on each worker."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs
        check_same_training(NAME, folder, saved, *OPTIONS, "--dropout", "0", length="--epochs")


@workers(1, framework="hugging-face")
def test_alone_it_is_the_serial_training(tmp_path: Path) -> None:
    same_training(tmp_path)


@workers(2, framework="hugging-face")
def test_two_workers_train_the_same(tmp_path: Path) -> None:
    same_training(tmp_path)


@workers(3, framework="hugging-face")
def test_three_workers_train_the_same(tmp_path: Path) -> None:
    assert current().size == 3
    same_training(tmp_path)


def test_it_runs_as_its_user_starts_it(tmp_path: Path) -> None:
    printed = run_on_two(TRAININGS / NAME / "after.py", tmp_path, *OPTIONS)
    assert [line.split(":")[0] for line in printed.splitlines() if "accuracy" in line] == ["[0] epoch 0", "[0] epoch 1"]
    assert all(tensor.isfinite().all() for tensor in saved(tmp_path).values())
    assert (tmp_path / "tuned" / "tokenizer.json").is_file()
