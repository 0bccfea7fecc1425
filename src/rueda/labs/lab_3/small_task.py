"""A task that a laptop trains in about a second: 2,000 glyphs of 14 x 14 pixels and a small CNN.

It is the built-in task ``glyphs-cnn`` made smaller, and hard enough that eight workers with nothing else changed lose
most of one worker's accuracy: in four epochs one worker makes 500 updates of 16 images, eight workers make 60 of 128.
Workers are rehearsed: one process computes the updates of all of them (:mod:`rueda.train.rehearsal`).
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from rueda.records.metric import TOLERANCE
from rueda.records.recipe.recipe import Recipe
from rueda.records.run import Run
from rueda.records.study import BASELINE
from rueda.report.figures.progress import progress
from rueda.report.model import Line, Section
from rueda.report.plot import Plot
from rueda.report.runs import primary, read_run, to_entry
from rueda.study.conditions import condition

if TYPE_CHECKING:
    from torch import nn

    from rueda.data import Arrays
    from rueda.tasks import Task
    from rueda.train.loop import Result

WORKERS = 8
"""the number of workers of the lab's experiments"""
RECIPE = Recipe(batch=16, rate=0.02, momentum=0.9, epochs=4, model={"width": 8})
"""the recipe with which one worker trains the task well"""
NAIVE = "naive"


@cache
def small_glyphs() -> Task:
    """Return the task, with its data loaded.

    >>> task = small_glyphs()
    >>> task.load("train"), task.recipe.global_batch
    (Arrays(2000 examples of uint8 [1, 14, 14]), 16)
    """
    from rueda.tasks import Task
    from rueda.tasks.models import small_cnn

    return Task(
        name="small-glyphs", model=partial(small_cnn, image_size=14), train=small_images("train", 2_000),
        test=small_images("test", 1_000), recipe=RECIPE,
        unit="images",
    )  # fmt: skip


def small_images(split: str, num_examples: int) -> Arrays:
    """Return every second pixel of easy glyphs, 14 x 14."""
    from rueda.data import Arrays
    from rueda.tasks.datasets import glyphs

    whole = glyphs(split, num_examples=num_examples, difficulty=0.3)
    return Arrays(whole.inputs[..., ::2, ::2], whole.targets, mean=[0.275], std=[0.242], names=whole.names)


@cache
def recipe(name: str, workers: int = WORKERS, seed: int = 0) -> Recipe:
    """Return the recipe of a row such as ``batch-norm+linear-warmup``, as ``rueda study`` derives it.

    >>> recipe("linear-warmup").scaling, recipe("one-worker+lamb").workers
    ('linear', 1)
    """
    return condition(name, RECIPE.change(seed=seed), workers).recipe


def train(recipe: Recipe, name: str) -> Line:
    """Train the task by a recipe, and return the run as a line of the report's figures; the same call trains once."""
    return _trained(recipe.to_toml(), name)[0]


def trained_model(recipe: Recipe, name: str) -> nn.Module:
    """Return the model that :func:`train` trained."""
    return _trained(recipe.to_toml(), name)[1].model


@cache
def _trained(toml: str, name: str) -> tuple[Line, Result]:
    from rueda.train.loop import fit

    wanted = Recipe.from_toml(toml)
    with tempfile.TemporaryDirectory(prefix="rueda-lab-") as folder:
        run = Path(folder, "run")
        with redirect_stderr(io.StringIO()):  # a remark about a jump of the loss would have no place in the lab
            result = fit(small_glyphs(), wanted, folder=run, progress=False, rehearse=wanted.workers > 1)
        line, _ = read_run(Run(run), name)
    return line, result


def compare(lines: Sequence[Line], title: str = "") -> Section:
    """Return runs as a section of the report, compared with the line of one worker, if there is one.

    Each is trained with one seed, which shows no spread: as in a study, its difference remains *undecided*.
    """
    section = Section(title=title, task="small-glyphs", is_study=True, metric=primary(lines))
    section.lines = [replace(line, entry=number) for number, line in enumerate(lines)]
    section.entries = [to_entry([line]) for line in lines]
    base = next((entry for entry in section.entries if entry.name == BASELINE), None)
    for entry in section.entries:
        entry.role = "base" if entry is base else "naive" if entry.name == NAIVE else "other"
        if base is None or entry is base or entry.diverged:
            continue
        entry.against = section.metric.change(entry.test, base.test)
        if entry.against is not None:
            entry.verdict = section.metric.judge(None, TOLERANCE)
    return section


def progress_plot(section: Section) -> Plot:
    """Draw the accuracy of each run along its training; on a phone, where lines have no names, with a legend."""
    plot = progress(section)
    plot.narrow = {**plot.narrow, "showlegend": True}
    plot.narrow_height = 340 + 20 * len(section.lines)
    return plot


def rows(names: Sequence[str], workers: int = WORKERS, seed: int = 0) -> Section:
    """Train rows of a study on the small task and compare them."""
    return compare([train(recipe(name, workers, seed), name) for name in names])
