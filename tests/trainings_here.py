"""The scripts of examples/trainings: run in this process, compared, and shown as diffs in the how-to page.

``python tests/trainings_here.py`` writes the diffs into docs/how-to/own-training.md.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import random
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
from torch.utils.data import DataLoader, Dataset

import rueda.data.dataloader
import rueda.data.evaluation  # noqa: F401 (both before DataLoader is replaced)
from rueda.data.partition import order
from rueda.world import current

ROOT = Path(__file__).parents[1]
TRAININGS = ROOT / "examples" / "trainings"
PAGE = ROOT / "docs" / "how-to" / "own-training.md"


def lines_of(name: str, script: str) -> list[str]:
    return (TRAININGS / name / script).read_text().splitlines()


def changed_lines(name: str) -> tuple[int, int]:
    """Return how many lines were added and how many removed, blank ones too, as diff prints them with > and <."""
    steps = [line[0] for line in difflib.ndiff(lines_of(name, "before.py"), lines_of(name, "after.py"))]
    return steps.count("+"), steps.count("-")


def diff(name: str) -> str:
    """Return the change as a page shows it: each changed line with one line around it."""
    before, after = lines_of(name, "before.py"), lines_of(name, "after.py")
    found = list(difflib.unified_diff(before, after, "before.py", "after.py", n=1, lineterm=""))
    return "\n".join(re.sub(r"^@@ .*", "@@", line) for line in found) + "\n"


def renewed(page: str) -> str:
    """Return the page with the diffs as they are now; each stands below a comment with the name of its folder."""

    def block(found: re.Match[str]) -> str:
        return f"<!-- diff: {found[1]} -->\n```diff\n{diff(found[1])}```"

    return re.sub(r"<!-- diff: ([\w-]+) -->\n```diff\n.*?```", block, page, flags=re.DOTALL)


class Seeded(Dataset[Any]):
    """Examples whose random numbers follow from their index, whoever reads them."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        torch.manual_seed(index)
        random.seed(index)
        return self.dataset[index]


class Reading(DataLoader[Any]):
    """torch's DataLoader, of seeded examples."""

    def __init__(self, dataset: Any, *words: Any, **options: Any) -> None:
        super().__init__(Seeded(dataset), *words, **options)


class Ordered(torch.utils.data.Sampler[int]):
    """The order in which Rueda reads a data set, epoch after epoch."""

    def __init__(self, dataset: Any) -> None:
        self.size, self.epoch = len(dataset), -1

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter(order(self.size, seed=0, epoch=self.epoch).tolist())


class ReadingInOrder(Reading):
    """The same, shuffled as Rueda shuffles."""

    def __init__(self, dataset: Any, *words: Any, shuffle: bool = False, **options: Any) -> None:
        super().__init__(dataset, *words, sampler=Ordered(dataset) if shuffle else None, **options)


def run_script(name: str, script: str, folder: Path, *words: str) -> str:
    """Run a script in a folder, in float64, and return what it printed.

    Serial and parallel scripts get the same examples: a shuffle and an augmentation draw other random numbers on
    another number of workers, so both read each example with random numbers of its own, and the serial one in the order
    in which Rueda shuffles. Nothing else of the scripts is replaced.
    """
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.chdir(folder)
        patch.setattr(sys, "argv", [script, *words])
        patch.setattr(torch.utils.data, "DataLoader", ReadingInOrder if script == "before.py" else Reading)
        torch.set_default_dtype(torch.float64)
        try:
            runpy.run_path(str(TRAININGS / name / script), run_name="__main__")
        finally:
            torch.set_default_dtype(torch.float32)
    return printed.getvalue()


def differences(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the largest difference between the tensors of two state dicts."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def check_same_training(name: str, folder: Path, saved: Any, *words: str, length: str) -> None:
    """Run both scripts, the second on all workers of the test, and compare what they print and save.

    Args:
        name: the folder of the scripts.
        folder: where they run; it has their data.
        saved: reads the state dict that a script has saved, in the current folder.
        words: the arguments of both scripts.
        length: the option that says how long they train; with 0 it gives the model before the training.
    """
    world = current()
    parallel = run_script(name, "after.py", folder, *words)
    world.barrier()
    if not world.is_main:
        assert parallel == "", "rank 0 alone prints"
        return
    together = saved(folder)
    assert parallel == run_script(name, "before.py", folder, *words)
    alone = saved(folder)
    assert all(tensor.dtype in (torch.float64, torch.int64) for tensor in alone.values())
    assert differences(together, alone) < 1e-10
    run_script(name, "before.py", folder, *words, length, "0")
    assert differences(alone, saved(folder)) > 1e-3, "it has learned something"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
