"""``rueda train``: trains a task on N workers; the twin of :func:`rueda.fit`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rueda.cli.options import Epochs, Settings, TaskName

if TYPE_CHECKING:
    from rueda.records import Run
    from rueda.train.request import TrainAnswer, TrainRequest

EPILOG = "Example: rueda train glyphs-cnn --workers 2 --set batch=128 --set rate=0.1 --epochs 3"


def train(
    task: TaskName,
    workers: Annotated[int | None, typer.Option("--workers", "-np", help="How many workers train.")] = None,
    recipe: Annotated[Path | None, typer.Option(help="A recipe file; by default the task's own recipe.")] = None,
    settings: Settings = None,
    epochs: Epochs = None,
    target_accuracy: Annotated[
        float | None, typer.Option(help="Stop when --patience epochs in a row reach this test accuracy.")
    ] = None,
    patience: Annotated[int | None, typer.Option(help="Epochs in a row that must reach the target.")] = None,
    run: Annotated[Path | None, typer.Option(help="The run folder; by default runs/TASK-DATE.")] = None,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Be all workers in this one process: the same numbers, in turns.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint in --run.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard events, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a task on one worker or many."""
    from datetime import datetime

    from rueda.cli.stopping import stoppable
    from rueda.errors import RunError
    from rueda.records import Run
    from rueda.records.recipe.recipe import RecipeFile
    from rueda.train.request import TrainRequest
    from rueda.world.running import running_identity

    if resume and run is None:
        raise RunError("--resume needs --run, the folder of the run to go on with")
    request = TrainRequest(
        task=task, recipe_file=None if recipe is None else RecipeFile.read(recipe), settings=tuple(settings or ()),
        workers=workers, epochs=epochs, target_accuracy=target_accuracy, patience=patience, folder=run,
        date=f"{datetime.now():%Y%m%d-%H%M%S}", resume=resume, tensorboard=tensorboard, rehearse=rehearse,
        progress=not as_json,
    )  # fmt: skip
    with stoppable():
        answer = _train(request)
    if running_identity().rank == 0:
        _tell(Run(answer.folder), run or answer.folder, as_json)


def _train(request: TrainRequest) -> TrainAnswer:
    """Train in this process if it is the only worker, or one that somebody started; otherwise start the workers."""
    from rueda.jobs import run
    from rueda.train.request import train_job
    from rueda.world.running import running_identity

    workers = 1 if request.rehearse or running_identity().size > 1 else request.known_workers()
    if workers is None or workers <= 1:
        from rueda.tasks import load_task
        from rueda.train.job import resolved_recipe, train_task

        task = load_task(request.task)
        workers = workers if workers == 1 else resolved_recipe(task, request).workers
        if workers == 1:
            return train_task(task, request)
        os.chdir(request.directory)  # which the task file may have left
    return run(train_job(request), workers=workers)


def _tell(run: Run, folder: Path, as_json: bool) -> None:
    rows = run.rows("epoch")
    if as_json:
        last = json.loads(rows[-1].to_json()) if rows else {}
        typer.echo(json.dumps({"run": str(folder), **last}))
        return
    if rows and rows[-1].diverged:
        typer.echo(
            f"diverged: the loss is not finite in the epoch that ended at update {rows[-1].step:,}; "
            "lower the rate or warm up",
            err=True,
        )
    typer.echo(f"run: {folder}")
