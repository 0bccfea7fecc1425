"""Trainings as others write them, in examples/trainings: ten lines make them parallel, and they train the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from examples_here import run_on_two
from harness import workers
from rueda.world import current
from trainings_here import PAGE, TRAININGS, changed_lines, check_same_training, lines_of, renewed, run_script

NAMES = sorted(file.parent.name for file in TRAININGS.glob("*/before.py"))
SAVED: dict[str, Callable[[Path], dict[str, torch.Tensor]]] = {
    "contrastive": lambda folder: torch.load(folder / "encoder.pt"),
    "image-folder": lambda folder: torch.load(folder / "model.pt"),
    "language-model": lambda folder: torch.load(folder / "model.pt")["model"],
}
"""how to read what each script saves; tests/frameworks/test_fine_tuning.py tests the one that needs transformers"""
OPTIONS = {
    "contrastive": ["--batch-size", "48", "--epochs", "2"],
    "image-folder": ["--batch-size", "36", "--epochs", "2", "--width", "4", "--size", "16"],
    "language-model": ["--batch-size", "12", "--steps", "6", "--warmup", "2", "--eval-every", "3", "--width", "32"],
}
LENGTH = {"contrastive": "--epochs", "image-folder": "--epochs", "language-model": "--steps"}


def prepare(name: str, folder: Path) -> None:
    pytest.importorskip("PIL", reason="needs Pillow")
    if current().is_main:
        run_script(name, "prepare.py", folder)
    current().barrier()


def same_training(name: str, folder: Path) -> None:
    prepare(name, folder)
    check_same_training(name, folder, SAVED[name], *OPTIONS[name], length=LENGTH[name])


@pytest.mark.parametrize("name", SAVED)
def test_alone_it_is_the_serial_training(name: str, tmp_path: Path) -> None:
    same_training(name, tmp_path)


@pytest.mark.parametrize("name", SAVED)
@workers(2)
def test_two_workers_train_the_same(name: str, tmp_path: Path) -> None:
    same_training(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAVED)
@workers(3)
def test_three_workers_train_the_same(name: str, tmp_path: Path) -> None:
    same_training(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAVED)
def test_they_run_as_their_users_start_them(name: str, tmp_path: Path) -> None:
    """In float32, with shuffling and augmentation of their own."""
    prepare(name, tmp_path)
    printed = run_on_two(TRAININGS / name / "after.py", tmp_path, *OPTIONS[name])
    found = re.findall(r"^\[(\d)\] (?:epoch|step) (\d+): .*loss (\d+\.\d+)", printed, re.MULTILINE)
    assert {rank for rank, _, _ in found} == {"0"}
    assert len({step for _, step, _ in found}) == len(found) > 1, "every line is printed once"
    assert all(tensor.isfinite().all() for tensor in SAVED[name](tmp_path).values())


# Their number of lines, and the page that shows them.


@pytest.mark.parametrize("name", NAMES)
def test_at_most_ten_lines_are_changed(name: str) -> None:
    """A changed line is added once and removed once, so the larger of the two numbers counts."""
    assert max(changed_lines(name)) <= 10


@pytest.mark.parametrize("name", NAMES)
def test_the_serial_scripts_know_nothing_of_rueda(name: str) -> None:
    for script in ("before.py", "prepare.py"):
        if script == "before.py" or (TRAININGS / name / script).is_file():
            assert not any("rueda" in line for line in lines_of(name, script))


def test_the_page_shows_the_diffs_as_they_are() -> None:
    page = PAGE.read_text()
    assert page == renewed(page), "run: python tests/trainings_here.py"
    assert sorted(re.findall(r"<!-- diff: ([\w-]+) -->\n```diff\n", page)) == NAMES
