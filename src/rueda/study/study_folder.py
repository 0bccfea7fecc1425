"""The study's folder: which study it holds, its runs, and the table in ``study.json``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rueda.errors import RecipeError, RunError
from rueda.records import Recipe
from rueda.records.archive import FILE as ARCHIVE
from rueda.records.study import BASELINE, Study, StudyRow
from rueda.study.conditions import Condition
from rueda.study.planned_run import PlannedRun
from rueda.study.runs import is_finished, recorded_recipe, refuse_another, summarise
from rueda.study.task_file import refuse_mixture

if TYPE_CHECKING:
    from rueda.study.planning import StudyPlan
    from rueda.tasks import Task

_AGAIN = "remove it: the runs are kept, and the same command writes it again"


class StudyFolder:
    """A folder with one study: its rows share the task, the number of workers and the base recipe."""

    def __init__(self, plan: StudyPlan, task: Task | str, workers: int) -> None:
        """Open a folder, new or old.

        Args:
            plan: its rows and the recipe of which they are made.
            task: as the user gave it.
            workers: of all rows but the controls.

        Raises:
            RunError: the folder holds another study, or a damaged one.
        """
        root, base, checksum = plan.folder, plan.base, plan.task_file
        self.root, self._file, self._chosen = root, root / "study.json", plan.conditions
        command = plan.environment["command"]
        self._study = Study(
            task=plan.task, workers=workers, epochs=base.epochs, environment=plan.environment, command=command,
            commands=(command,), recipe=_without_seed(base), task_file=checksum,
        )  # fmt: skip
        self.kept: dict[str, StudyRow] = {}
        """rows that an earlier study in this folder made"""
        if (root / ARCHIVE).exists():
            raise RunError(f"{root} holds an archived study, without its runs; choose another --folder")
        old = Study.load(self._file, again=_AGAIN) if self._file.exists() else None
        if old is None:
            refuse_mixture(root, (), task, checksum)
            return
        self._check_settings(old, base)
        another = old.task_file not in (None, checksum)
        refuse_mixture(root, [row.name for row in old.rows] if another else (), task, checksum)
        self.kept = {row.name: row for row in old.rows}
        earlier = old.commands or ((old.command,) if old.command else ())
        commands = earlier if command in earlier else (*earlier, command)
        self._study = replace(self._study, commands=commands, task_file=checksum or old.task_file)

    def _check_settings(self, old: Study, base: Recipe) -> None:
        was, now = ((one.task, one.workers, one.epochs) for one in (old, self._study))
        if was != now:
            words = "task {}, {} workers, {} epochs"
            raise RunError(
                f"{self.root} holds a study of {words.format(*was)}, now asked: {words.format(*now)}; "
                "choose another --folder"
            )
        recorded = _base_of(old, self._file)
        refuse_another(self.root, None if recorded is None else recorded.change(seed=base.seed), base)

    def write(self) -> Study:
        """Summarise what is finished and write ``study.json``; rows of earlier studies stay."""
        found = dict(self.kept)
        for one in self._chosen:
            runs = [
                (run.seed, run.folder)
                for run in runs_of(self.root, one, _seeds_in(self.root, one.name))
                if is_finished(run.folder, run.recipe)
            ]
            row = summarise(one, self.root, runs, rehearsed=one.recipe.workers > 1)
            if row is not None:
                found[one.name] = row
        order = {one.name: number for number, one in enumerate(self._chosen)}
        rows = sorted(found.values(), key=lambda row: order.get(row.name, len(order)))
        study = replace(self._study, rows=tuple(rows)).judged()
        study.save(self._file)
        return study


def runs_of(root: Path, one: Condition, seeds: Sequence[int]) -> list[PlannedRun]:
    """List the runs of a row in a study's folder."""
    return [
        PlannedRun(one.name, seed, one.recipe.change(seed=seed), root / "runs" / f"{one.name}-seed{seed}")
        for seed in seeds
    ]


def _seeds_in(root: Path, name: str) -> list[int]:
    """List the seeds of a row that the folder holds."""
    texts = [folder.name.removeprefix(f"{name}-seed") for folder in (root / "runs").glob(f"{name}-seed*")]
    return sorted(int(text) for text in texts if text.isdigit())


def _without_seed(base: Recipe) -> str:
    """Write the base recipe; its seed is no part of it, so that seeds can be added."""
    return "".join(line for line in base.to_toml().splitlines(keepends=True) if not line.startswith("seed ="))


def _base_of(old: Study, file: Path) -> Recipe | None:
    """Find the base recipe of a study; one of an older Rueda shows it in the rows that change nothing else."""
    if old.recipe:
        try:
            return Recipe.from_toml(old.recipe)
        except RecipeError as error:
            raise RunError(f"{file}: expected a base recipe, got: {error}; {_AGAIN}") from None
    for name in (BASELINE, "naive"):
        row = old.row(name)
        for run in row.runs if row is not None else ():
            try:
                recipe = recorded_recipe(file.parent / run)
            except RunError:
                continue
            if recipe is not None:
                return recipe.change(workers=1)
    return None
