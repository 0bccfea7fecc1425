"""Plans the rows of a study, which requires the task itself: its recipe, its model and the size of its training set.

``rueda study`` plans in another process (:func:`plan`), so that the process that waits for the runs neither loads torch
nor executes the task file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rueda.errors import DataError, RecipeError
from rueda.files.start_directory import located
from rueda.records import Recipe
from rueda.records.environment import environment
from rueda.records.metric import ACCURACY, LOSS, TOLERANCE, MetricInfo
from rueda.records.recipe.recipe import NO_TARGET
from rueda.study.conditions import Condition, conditions
from rueda.study.runs import is_finished
from rueda.study.study_folder import runs_of
from rueda.tasks.naming import folder_name

if TYPE_CHECKING:
    from rueda.tasks import Task


@dataclass(frozen=True, kw_only=True)
class StudyRequest:
    """What a study is asked to compare; the fields are those of :func:`rueda.study.study_techniques`."""

    task: str
    workers: int
    rows: tuple[str, ...] | None = None
    seeds: int = 1
    epochs: int | None = None
    settings: tuple[str, ...] = ()
    folder: Path | None = None
    tolerance: float | None = None
    directory: Path = field(default_factory=Path.cwd)
    """the working directory of the user, to which relative paths refer"""


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """The rows of a study, checked against the task."""

    task: str
    """the name of the task"""
    task_file: str | None
    """checksum of the file that defines the task; None for a built-in task"""
    base: Recipe
    """the recipe of one worker, from which all rows are derived"""
    conditions: tuple[Condition, ...]
    left_out: tuple[str, ...]
    """one line for each reason why default rows do not fit the task"""
    folder: Path
    environment: dict[str, Any]
    metric: MetricInfo = ACCURACY
    """the primary metric, as far as it is known before the first training"""
    unit: str = "images"
    tolerance: float = TOLERANCE


def plan(request: StudyRequest) -> StudyPlan:
    """Load the task and plan its study."""
    from rueda.tasks import load_task

    return plan_task(load_task(request.task), request)


def plan_task(task: Task, request: StudyRequest) -> StudyPlan:
    """Plan the study of a task that is loaded already.

    Raises:
        RuedaError: a row does not fit the task, or a batch is larger than its training set.
    """
    if request.tolerance is not None and not request.tolerance >= 0:
        raise RecipeError("--tolerance", expected="0 or more", got=request.tolerance, do="give e.g. 0.01")
    base = task.recipe.with_settings(request.settings).change(workers=1, **NO_TARGET)
    base = base if request.epochs is None else base.change(epochs=request.epochs)
    chosen, left_out = conditions(task, base, request.workers, request.rows)
    folder = request.folder or Path("runs", f"study-{folder_name(task.name)}-{request.workers}")
    _check_batches(task, chosen, located(folder, request.directory), range(base.seed, base.seed + request.seeds))
    return StudyPlan(
        task=task.name, task_file=None if task.file is None else task.file.sha256, base=base,
        conditions=tuple(chosen), left_out=tuple(left_out), folder=folder, environment=environment(),
        metric=task.all_metrics[0].info if task.all_metrics else LOSS, unit=task.unit,
        tolerance=next(one for one in (request.tolerance, task.tolerance, TOLERANCE) if one is not None),
    )  # fmt: skip


def _check_batches(task: Task, chosen: list[Condition], root: Path, seeds: range) -> None:
    """Refuse a global batch that is larger than the training set, before anything is trained."""
    from rueda.data.length import count_examples
    from rueda.data.partition import check_batch

    todo = [run for one in chosen for run in runs_of(root, one, seeds) if not is_finished(run.folder, run.recipe)]
    num_examples = count_examples(task.for_recipe(todo[0].recipe).load("train")) if todo else 0
    for run in todo:
        try:
            check_batch(num_examples, run.recipe.local_batch, run.recipe.workers)
        except DataError as error:
            raise DataError(f"row {run.name}: {error}") from None
