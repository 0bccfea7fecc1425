"""``rueda train``: trains a task on one worker or many, as :func:`rueda.fit` does."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rueda.cli import completion
from rueda.cli.options import (
    TASK_HELP,
    DiscoveryScript,
    ElasticTimeout,
    Epochs,
    Grace,
    Hostfile,
    Hosts,
    MaxWorkers,
    MinWorkers,
    Restarts,
    Settings,
    SilenceTimeout,
    SshCommand,
    StallDump,
    StallTimeout,
    StallWarning,
    TargetMetric,
    TargetValue,
    elastic_options,
    folder_of,
)

if TYPE_CHECKING:
    from rueda.records import Run
    from rueda.train.request import TrainAnswer, TrainRequest

DIVERGED = 3
"""exit status of a training whose gradients or weights are no longer finite"""
EPILOG = "Example: rueda train glyphs-cnn --workers 2 --set rate=0.1 --epochs 3"


def train(
    task: Annotated[
        str | None,
        typer.Argument(help=f"{TASK_HELP} --resume takes that of the run.", autocompletion=completion.tasks),
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", "-np", help="Number of workers.")] = None,
    recipe: Annotated[Path | None, typer.Option(help="A recipe file; by default the task's own recipe.")] = None,
    settings: Settings = None,
    epochs: Epochs = None,
    target_accuracy: Annotated[float | None, typer.Option(help="Stop at this accuracy; see --patience.")] = None,
    target: TargetValue = None,
    target_metric: TargetMetric = None,
    patience: Annotated[int | None, typer.Option(help="Consecutive epochs that must reach the target.")] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            parser=folder_of,
            metavar="PATH",
            help="The run folder; by default runs/TASK-DATE.",
            autocompletion=completion.results,
        ),
    ] = None,
    checkpoints: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|URL",
            help="The folder of the checkpoints, also on object storage (s3://BUCKET/FOLDER); by default in --run.",
        ),
    ] = None,
    rehearse: Annotated[bool, typer.Option("--rehearse", help="Simulate all workers in this one process.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the newest checkpoint in --run.")] = False,
    resume_from: Annotated[
        str | None, typer.Option(metavar="last|best|STEP", help="Resume from this checkpoint in --run.")
    ] = None,
    grace: Grace = None,
    track: Annotated[
        list[str] | None,
        typer.Option(
            "--track",
            metavar="tensorboard|mlflow|wandb",
            help="Also write to this tracker; may be repeated.",
            autocompletion=completion.trackers,
        ),
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="The same as --track tensorboard.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    elastic: Annotated[
        bool, typer.Option("--elastic", help="Go on when workers are lost, leave or come; see the options below.")
    ] = False,
    least: MinWorkers = None,
    most: MaxWorkers = None,
    restarts: Restarts = None,
    timeout: SilenceTimeout = None,
    elastic_timeout: ElasticTimeout = None,
    hosts: Hosts = "",
    hostfile: Hostfile = None,
    discovery_script: DiscoveryScript = "",
    ssh: SshCommand = "ssh",
    stall_warning: StallWarning = None,
    stall_timeout: StallTimeout = None,
    stall_dump: StallDump = None,
) -> None:
    """Train a task on one worker or many."""
    import sys
    from datetime import datetime

    from rueda.cli.elastic_training import JobOptions, check_job_options, run_elastic_job
    from rueda.cli.stopping import stoppable
    from rueda.errors import RunError
    from rueda.records import Run
    from rueda.records.recipe.batches import check_counts
    from rueda.records.recipe.recipe import RecipeFile
    from rueda.train.request import TrainRequest
    from rueda.train.trackers import checked_names
    from rueda.world.elastic.membership import is_elastic
    from rueda.world.running import running_identity
    from rueda.world.stall.limits import stall_variables

    os.environ.update(stall_variables(stall_warning, stall_timeout, stall_dump))
    resume = resume or resume_from is not None
    if resume and run is None:
        raise RunError("--resume needs --run, the folder of the run to resume")
    job = JobOptions(
        hosts=hosts, hostfile=hostfile, ssh=ssh,
        limits=elastic_options(least, most, restarts, timeout, elastic_timeout, discovery_script),
    )  # fmt: skip
    check_job_options(job, elastic=elastic, rehearse=rehearse)
    check_counts(**{"--workers": workers, "--epochs": epochs, "--patience": patience})
    request = TrainRequest(
        task=task or _task_of(run if resume else None), settings=tuple(settings or ()),
        recipe_file=None if recipe is None else RecipeFile.read(recipe), workers=workers, epochs=epochs,
        target_accuracy=target_accuracy, target=target, target_metric=target_metric, patience=patience, folder=run,
        date=f"{datetime.now():%Y%m%d-%H%M%S}", resume=resume, resume_from=resume_from or "last",
        checkpoints=checkpoints, track=checked_names(track or (), tensorboard=tensorboard),
        rehearse=rehearse or (resume and run is not None and _was_rehearsed(run)),
        progress=not as_json,
    )  # fmt: skip
    if elastic and not is_elastic():
        check_job_options(job, elastic=True, rehearse=request.rehearse)
        run_elastic_job(request, sys.argv[1:], job)
    with stoppable("stopped; nothing new was saved" if running_identity().rank == 0 else None):
        answer = _train(request)
    if running_identity().rank == 0:
        _tell(Run(answer.folder), run or answer.folder, answer, as_json)
    if answer.status == "diverged":
        _end_elastic_job("the training has diverged")
        raise typer.Exit(DIVERGED)


def _end_elastic_job(why: str) -> None:
    """Tell the launcher of an elastic job that it ends, although this worker's exit status is not 0."""
    from rueda.world.elastic.membership import is_elastic

    if is_elastic():
        from rueda.world.elastic import failing

        failing(why)


def _was_rehearsed(folder: Path) -> bool:
    """Return whether the run to resume was rehearsed; then it is resumed as a rehearsal."""
    from rueda.records import Run

    return (folder / "environment.json").exists() and Run(folder).environment().get("rehearsed") is True


def _task_of(run: Path | None) -> str:
    """Return the task of the run that is resumed."""
    from rueda.errors import TaskError
    from rueda.records import Run

    if run is None:
        raise TaskError("TASK", expected="a built-in name or a Python file", got="nothing", do="name the task to train")
    return Run(run).task_name()


def _train(request: TrainRequest) -> TrainAnswer:
    """Train in this process if it is the only worker or was started by a launcher; otherwise start the workers."""
    from rueda.jobs import run
    from rueda.jobs.stopping import import_numpy
    from rueda.train.request import train_job
    from rueda.world.elastic.membership import is_elastic
    from rueda.world.running import running_identity

    if is_elastic():
        from rueda.world.elastic import register

        register()  # before anything can fail: a user's mistake ends the job, and starts no fresh process
    runs = request.rehearse or is_elastic() or running_identity().size > 1
    workers = 1 if runs else request.known_workers()
    if workers is None or workers <= 1:
        import_numpy()
        from rueda.tasks import load_task
        from rueda.train.job import resolved_recipe, train_task

        task = load_task(request.task)
        workers = workers if workers == 1 else resolved_recipe(task, request).workers
        if workers == 1:
            return train_task(task, request)
        os.chdir(request.directory)  # the task file may have called os.chdir
    return run(train_job(request), workers=workers)


def _tell(run: Run, folder: Path, answer: TrainAnswer, as_json: bool) -> None:
    rows = run.rows("epoch")
    if answer.status == "diverged":
        if answer.checkpoint is None:
            whole = "no checkpoint was written before"
        else:
            whole = f"{answer.checkpoint} is whole and finite: --resume continues from it"
        typer.echo(f"diverged after update {rows[-1].step:,}: {answer.divergence}; {whole}", err=True)
    if as_json:
        last = json.loads(rows[-1].to_json()) if rows else {}
        typer.echo(json.dumps({"run": str(folder), **last}))
        return
    typer.echo(f"run: {folder}\nnext: rueda report {shlex.quote(str(folder))}")
