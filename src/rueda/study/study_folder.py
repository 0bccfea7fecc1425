"""The folder of a study: it holds the runs, and in ``study.json`` the table that summarises them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from rueda.errors import RunError
from rueda.records import Recipe
from rueda.records.archive import FILE as ARCHIVE
from rueda.records.study import BASELINE, Study, StudyRow
from rueda.study.conditions import Condition
from rueda.study.planned_run import PlannedRun
from rueda.study.runs import is_finished, metric_of, recorded_recipe, refuse_another, summarise
from rueda.study.task_file import refuse_mixture

if TYPE_CHECKING:
    from rueda.study.planning import StudyPlan
    from rueda.tasks import Task

_AGAIN = "remove it: the runs are kept, and the same command writes it again"


class StudyFolder:
    """A folder that holds one study, whose rows share the task, the number of workers and the base recipe."""

    def __init__(self, plan: StudyPlan, task: Task | str, workers: int) -> None:
        """Open a new folder, or one to continue.

        Args:
            plan: the rows and the recipe from which they are derived.
            task: a name, a file, or the task itself.
            workers: the number of workers of all rows except the controls.

        Raises:
            RunError: the folder holds another study, or a damaged one.
        """
        root, base, checksum = plan.folder, plan.base, plan.task_file
        self.root, self._file, self._chosen = root, root / "study.json", plan.conditions
        command = plan.environment["command"]
        self._study = Study(
            task=plan.task, workers=workers, epochs=base.epochs, environment=plan.environment, command=command,
            commands=(command,), recipe=_without_seed(base), task_file=checksum, tolerance=plan.tolerance,
            metric=plan.metric, unit=plan.unit,
        )  # fmt: skip
        self.kept: dict[str, StudyRow] = {}
        """rows that are in ``study.json`` already, from an earlier command"""
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
        was, now = old.settings, self._study.settings
        if was != now:
            raise RunError(f"{self.root} holds a study of {was}, but now the request is {now}; choose another --folder")
        recorded = _base_of(old, self._file)
        refuse_another(self.root, None if recorded is None else recorded.change(seed=base.seed), base)

    def write(self) -> Study:
        """Summarise the finished runs and write ``study.json``, keeping the rows of earlier commands."""
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
        metric, unit = metric_of(self.root, rows) if rows else (self._study.metric, self._study.unit)
        study = replace(self._study, rows=tuple(rows), metric=metric, unit=unit).judged()
        study.save(self._file)
        return study


def runs_of(root: Path, one: Condition, seeds: Sequence[int]) -> list[PlannedRun]:
    """Return the runs of a condition in the folder of a study, one for each seed."""
    return [
        PlannedRun(one.name, seed, one.recipe.change(seed=seed), root / "runs" / f"{one.name}-seed{seed}")
        for seed in seeds
    ]


def _seeds_in(root: Path, name: str) -> list[int]:
    """Return the seeds with which the folder holds runs of a row."""
    texts = [folder.name.removeprefix(f"{name}-seed") for folder in (root / "runs").glob(f"{escape(name)}-seed*")]
    return sorted(int(text) for text in texts if text.isdigit())


def _without_seed(base: Recipe) -> str:
    """Return the base recipe as TOML without its seed, so that a later command may add seeds."""
    return "".join(line for line in base.to_toml().splitlines(keepends=True) if not line.startswith("seed ="))


def _base_of(old: Study, file: Path) -> Recipe | None:
    """Return the base recipe of a study; for a study of an older Rueda, read it from a run that used it unchanged."""
    if old.recipe:
        return old.base_recipe(file, _AGAIN)
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
