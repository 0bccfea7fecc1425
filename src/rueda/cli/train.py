"""``rueda train``: trains a task on N workers; the twin of :func:`rueda.fit`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

if TYPE_CHECKING:
    from rueda.records import Recipe, Run
    from rueda.train import Result

EPILOG = "Example: rueda train glyphs-cnn --workers 2 --set batch=128 --set rate=0.1 --epochs 3"


def train(
    task: Annotated[str, typer.Argument(help="A built-in task, or a Python file that defines `task`.")],
    workers: Annotated[Optional[int], typer.Option("--workers", "-np", help="How many workers train.")] = None,  # noqa: UP045
    recipe: Annotated[Optional[Path], typer.Option(help="A recipe file; by default the task's own recipe.")] = None,  # noqa: UP045
    settings: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--set", metavar="NAME=VALUE", help="Set a field of the recipe; may be repeated."),
    ] = None,
    epochs: Annotated[Optional[int], typer.Option(help="Passes over the training data.")] = None,  # noqa: UP045
    target_accuracy: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="Stop when --patience epochs in a row reach this test accuracy."),
    ] = None,
    patience: Annotated[Optional[int], typer.Option(help="Epochs in a row that must reach the target.")] = None,  # noqa: UP045
    run: Annotated[Optional[Path], typer.Option(help="The run folder; by default runs/TASK-DATE.")] = None,  # noqa: UP045
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Be all workers in this one process: the same numbers, in turns.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint in --run.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard events, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a task on one worker or many."""
    from rueda.errors import RunError
    from rueda.records import Run
    from rueda.tasks import load_task

    if resume and run is None:
        raise RunError("--resume needs --run, the folder of the run to go on with")
    loaded = load_task(task)
    chosen = loaded.recipe if not resume or run is None else _recorded(Run(run), loaded.recipe)
    if recipe is not None:
        from rueda.records import Recipe

        chosen = Recipe.load(recipe, base=chosen)
    options = {"workers": workers, "epochs": epochs, "target_accuracy": target_accuracy, "patience": patience}
    chosen = chosen.with_settings(settings or [])
    chosen = chosen.change(**{name: value for name, value in options.items() if value is not None})
    folder = run or _new_folder(loaded.name)
    show = not as_json
    if "WORLD_SIZE" in os.environ or chosen.workers == 1 or rehearse:
        from rueda.train import fit

        result = fit(
            loaded, chosen, folder=folder, resume=resume, tensorboard=tensorboard, progress=show, rehearse=rehearse
        )
        status = _status(result)
    else:
        status = launch_training(task, chosen, folder, resume=resume, tensorboard=tensorboard, show=show)
    if os.environ.get("RANK", "0") == "0" and "RUEDA_TRAIN_WORKER" not in os.environ and status == 0:
        _tell(Run(folder), as_json)
    raise typer.Exit(status)


def launch_training(
    task: str, recipe: Recipe, folder: Path, *, resume: bool = False, tensorboard: bool = False, show: bool = True
) -> int:
    """Train in ``recipe.workers`` processes of this machine and give their exit status."""
    from tempfile import TemporaryDirectory

    from rueda.world.launch import Host, LaunchPlan, Show, launch

    with TemporaryDirectory(prefix="rueda-") as scratch:
        file = Path(scratch, "recipe.toml")
        recipe.save(file)
        words = [sys.executable, "-m", "rueda", "train", task, "--recipe", str(file), "--run", str(folder)]
        words += ["--resume"] * resume + ["--tensorboard"] * tensorboard + ["--json"] * (not show)
        environment = {"RUEDA_TRAIN_WORKER": "1"}
        if show and sys.stderr.isatty():
            environment["RUEDA_TERMINAL"] = os.ttyname(sys.stderr.fileno())
        plan = LaunchPlan(
            program=tuple(words), hosts=(Host(name="localhost", slots=recipe.workers),), environment=environment
        )
        return launch(plan, show=Show(quiet_ranks=True))


def _recorded(run: Run, default: Recipe) -> Recipe:
    """Give the recipe of the run to go on with; a run that never began has none."""
    return run.recipe() if (run.folder / "recipe.toml").exists() else default


def _new_folder(name: str) -> Path:
    from datetime import datetime

    from rueda.tasks.naming import folder_name

    return Path("runs", f"{folder_name(name)}-{datetime.now():%Y%m%d-%H%M%S}")


def _status(result: Result) -> int:
    return 128 + result.signal if result.status == "interrupted" and result.signal else 0


def _tell(run: Run, as_json: bool) -> None:
    rows = run.rows("epoch")
    if as_json:
        last = json.loads(rows[-1].to_json()) if rows else {}
        typer.echo(json.dumps({"run": str(run.folder), **last}))
        return
    if rows and rows[-1].diverged:
        typer.echo(
            f"diverged: the loss is not finite in the epoch that ended at update {rows[-1].step:,}; "
            "lower the rate or warm up",
            err=True,
        )
    typer.echo(f"run: {run.folder}")
