"""``rueda study``: many trainings side by side; the twin of the functions in :mod:`rueda.study`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from rueda.cli.numbers import whole_numbers
from rueda.cli.stopping import resumable

if TYPE_CHECKING:
    from rueda.records import Recipe
    from rueda.records.study import Study
    from rueda.study.steps_to_target import Point

EPILOG = "Example: rueda study glyphs-cnn --workers 8 --rows one-worker,naive,lamb,batch-norm+linear-warmup --seeds 3"


_TAKES = {
    "the table": ("workers", "rows", "seeds", "epochs", "settings", "jobs", "confirm"),
    "--throughput": ("settings", "batches"),
    "--steps-to-target": ("seeds", "epochs", "settings", "target_accuracy", "batches"),
    "--gd": ("seeds", "batches"),
}
"""which options each of the studies has, beside --folder and --json"""


def study(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help="A built-in task, or a Python file that defines `task`.")],
    workers: Annotated[int, typer.Option("--workers", "-np", help="How many workers are rehearsed.")] = 8,
    rows: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Named recipes, by commas, combined by +; by default all of `rueda recipe list`."),
    ] = None,
    seeds: Annotated[Optional[int], typer.Option(help="Trainings of each row; 1, and 200 for --gd.")] = None,  # noqa: UP045
    epochs: Annotated[Optional[int], typer.Option(help="Passes over the training data.")] = None,  # noqa: UP045
    folder: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Where to write, and to go on; by default runs/study-TASK-WORKERS."),
    ] = None,
    settings: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--set", metavar="NAME=VALUE", help="Set a field of the base recipe; may be repeated."),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Trainings at a time.")] = 2,
    confirm: Annotated[bool, typer.Option("--confirm", help="Re-run the best row on real processes.")] = False,
    throughput: Annotated[
        bool, typer.Option("--throughput", help="Instead: images/s against the local batch.")
    ] = False,
    steps_to_target: Annotated[
        bool, typer.Option("--steps-to-target", help="Instead: updates to --target-accuracy against the batch size.")
    ] = False,
    target_accuracy: Annotated[float, typer.Option(help="Test accuracy for --steps-to-target.")] = 0.85,
    gd: Annotated[bool, typer.Option("--gd", help="Instead: gradient descent on the linear model.")] = False,
    batches: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Batch sizes, by commas, for --throughput, --steps-to-target and --gd."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result file.")] = False,
) -> None:
    """Show what many workers do to the accuracy of a task, and which technique brings it back."""
    from rueda.errors import RunError

    if throughput + steps_to_target + gd > 1:
        raise RunError("--throughput, --steps-to-target and --gd are three studies; ask for one at a time")
    kind = "--gd" if gd else "--throughput" if throughput else "--steps-to-target" if steps_to_target else "the table"
    _refuse_needless(context, kind)
    sizes = None if batches is None else whole_numbers("--batches", batches, "1,8,64")
    given = settings or []
    with resumable():
        if gd:
            _descent(task, sizes, seeds, folder or Path("runs", "study-linear"), as_json)
        elif throughput:
            _throughput(task, sizes, given, folder or _folder(task), as_json)
        elif steps_to_target:
            _steps(task, target_accuracy, sizes, seeds, epochs, given, folder or _folder(task), as_json)
        else:
            _techniques(
                task, folder or Path(f"{_folder(task)}-{workers}"), as_json, workers=workers, rows=_names(rows),
                seeds=1 if seeds is None else seeds, epochs=epochs, settings=given, jobs=jobs,
                confirm=_launch if confirm else None,
            )  # fmt: skip


def _refuse_needless(context: typer.Context, kind: str) -> None:
    """Refuse an option that another of the studies has: it would change nothing, and nobody would notice."""
    from rueda.errors import RunError

    flags = {item.name: item.opts[0] for item in context.command.params}
    known = {name for names in _TAKES.values() for name in names}
    for name in sorted(known - set(_TAKES[kind]), key=list(flags).index):
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE":
            continue
        others = " and ".join(other for other, names in _TAKES.items() if name in names)
        do = "use --set batch=N" if name == "batches" else "leave it out"
        raise RunError(f"{flags[name]} belongs to {others}, not to {kind}; {do}")


def _names(rows: str | None) -> list[str] | None:
    return None if rows is None else [name for name in rows.split(",") if name.strip()]


def _techniques(task: str, folder: Path, as_json: bool, **options: Any) -> None:
    from rueda.study.techniques import RunsFailed, study_techniques

    try:
        found = study_techniques(task, folder=folder, progress=not as_json, **options)
    except RunsFailed as error:  # what the others came to is shown all the same
        show_study(error.study, folder, as_json)
        raise
    show_study(found, folder, as_json)


def show_study(found: Study, folder: Path, as_json: bool) -> None:
    """Print the table and where it is, or the file; then draw the page, which may fail alone."""
    if as_json:
        typer.echo(found.to_json())
    else:
        from rich.console import Console

        from rueda.study.table import table_of

        console = Console()
        console.print()
        console.print(table_of(found))
        typer.echo(f"study: {folder / 'study.json'}")
    _draw(folder, as_json)


def _draw(folder: Path, as_json: bool) -> None:
    from rueda.report import write_report

    page = write_report([folder], folder / "report.html")
    if not as_json:
        typer.echo(f"page: {page}")


def _launch(task: str, recipe: Recipe, folder: Path) -> int:
    from rueda.cli.train import launch_training

    typer.echo(f"on {recipe.workers} real workers:", err=True)
    return launch_training(task, recipe, folder, resume=True)


def _folder(task: str) -> Path:
    from rueda.tasks.naming import folder_name

    return Path("runs", f"study-{folder_name(Path(task).stem)}")


def _tell(file: Path, as_json: bool, heading: str, headings: list[str], rows: list[list[str]], last: str) -> None:
    """Print a table and a line, or the file; then draw the page."""
    if as_json:
        typer.echo(json.dumps(json.loads(file.read_text(encoding="utf-8"))))
    else:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(heading))
        for name in headings:
            table.add_column(name, justify="right")
        for row in rows:
            table.add_row(*row)
        Console().print(table)
        typer.echo(f"{last}\nstudy: {file}")
    _draw(file.parent, as_json)


def _descent(task: str, sizes: list[int] | None, seeds: int | None, folder: Path, as_json: bool) -> None:
    from rueda.errors import TaskError
    from rueda.study.gradient_descent import BATCHES, study_gradient_descent

    if task != "linear":
        raise TaskError(f"--gd is the study of the linear model, got task {task!r}; run: rueda study linear --gd")
    num_seeds = 200 if seeds is None else seeds
    found = study_gradient_descent(batches=sizes or BATCHES, seeds=num_seeds, folder=folder)
    rows = [
        [
            f"{row.batch}", f"{row.epochs:.1f}", f"{row.updates:.0f}", f"{row.w:.2f} ± {row.w_spread:.2f}",
            f"{row.b:.2f} ± {row.b_spread:.2f}", f"{row.loss:.1f}",
        ]
        for row in found
    ]  # fmt: skip
    _tell(
        folder / "gd.json", as_json, f"y = w x + b, mean over {num_seeds} seeds",
        ["batch", "epochs", "updates", "w", "b", "loss"], rows, "true: w = 10, b = 2; the best loss is about 98",
    )  # fmt: skip


def _throughput(task: str, sizes: list[int] | None, settings: list[str], folder: Path, as_json: bool) -> None:
    from rueda.study.throughput import study_throughput

    found = study_throughput(task, batches=sizes, settings=settings, folder=folder, progress=not as_json)
    rows = [
        [f"{one.batch:,}", f"{one.images_per_second:,.0f}", f"{one.milliseconds_per_update:,.2f}"]
        for one in found.points
    ]
    last = f"not saturated up to batch {found.points[-1].batch:,}: a larger one may be faster"
    if found.saturates_at is not None:
        last = f"saturates at batch {found.saturates_at:,}: the smallest with 95 % of the best"
    _tell(
        folder / "throughput.json", as_json, f"{found.task}, one worker on this machine",
        ["local batch", "images/s", "ms an update"], rows, last,
    )  # fmt: skip


def _steps(
    task: str, target: float, sizes: list[int] | None, seeds: int | None, epochs: int | None, settings: list[str],
    folder: Path, as_json: bool,
) -> None:  # fmt: skip
    from rueda.study.steps_to_target import study_steps_to_target

    def say(line: str) -> None:
        if not as_json:
            typer.echo(line, err=True)

    found = study_steps_to_target(
        task, target_accuracy=target, batches=sizes, seeds=1 if seeds is None else seeds, epochs=epochs,
        settings=settings, folder=folder, say=say,
    )  # fmt: skip
    curve = found.curve
    rows = [
        [
            f"{one.batch:,}",
            "-" if one.rate is None else f"{one.rate:.4g}",
            "-" if one.updates is None else f"{one.updates:,.0f}{_some_seeds(one)}",
            "-" if one.examples is None else f"{one.examples:,.0f}",
            "" if curve is None else f"{curve.updates(one.batch):,.0f}",
            "" if curve is None else curve.regime(one.batch),
        ]
        for one in found.points
    ]
    last = "fewer than three batch sizes reached the target with every seed: no curve"
    if curve is not None:
        last = (
            f"critical batch {curve.critical_batch:,.0f} (90 % interval {curve.interval[0]:,.0f} to "
            f"{curve.interval[1]:,.0f}); at "
            f"least {curve.smallest_updates:,.0f} updates, at least {curve.smallest_examples:,.0f} examples"
        )
    _tell(
        folder / "steps.json", as_json, f"{found.task}: to test accuracy {100 * target:g} %",
        ["batch", "best rate", "updates", "examples", "fitted updates", "regime"], rows, last,
    )  # fmt: skip


def _some_seeds(point: Point) -> str:
    return "" if point.complete else f" ({len(point.seeds)} of {point.num_seeds} seeds)"
