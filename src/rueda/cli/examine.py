"""``rueda examine``: computes landscape, sharpness and curvature of trained models, as :mod:`rueda.examine` does."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rueda.cli import completion
from rueda.cli.options import PngFolder
from rueda.cli.stopping import resumable

if TYPE_CHECKING:
    from rueda.examine.request import ExamineRequest

EPILOG = "Example: rueda examine runs/one-worker runs/naive --points 21"
WORTH_STARTING_SECONDS = 20.0
"""the estimated seconds above which several workers are started by default"""


def examine(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Run folders or checkpoint files; several make a gallery.", autocompletion=completion.results
        ),
    ],
    landscape: Annotated[
        bool, typer.Option("--landscape", help="The loss surface over two random directions; the default.")
    ] = False,
    line: Annotated[bool, typer.Option("--line", help="The loss along random directions.")] = False,
    interpolate: Annotated[
        bool, typer.Option("--interpolate", help="The loss on the line from the first path to the second.")
    ] = False,
    path: Annotated[
        bool, typer.Option("--path", help="The surface in the plane of the training path (kept checkpoints).")
    ] = False,
    sharpness: Annotated[bool, typer.Option("--sharpness", help="How far the loss rises nearby.")] = False,
    hessian: Annotated[bool, typer.Option("--hessian", help="Top eigenvalues, trace, spectral density.")] = False,
    density: Annotated[
        bool,
        typer.Option("--density/--no-density", help="The spectral density, most of the time that --hessian takes."),
    ] = True,
    task: Annotated[
        str | None,
        typer.Option(help="The task of the paths: a built-in one, or a Python file; a run remembers its own."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Set a field of the recipe, such as model.width=2."),
    ] = None,
    checkpoint: Annotated[str, typer.Option(help="Of a run: last, best, or a number of updates.")] = "last",
    examples: Annotated[int, typer.Option(help="Examples of each split; 0 takes all.")] = 1024,
    splits: Annotated[str, typer.Option(help="train, test, or both by a comma.")] = "train,test",
    points: Annotated[
        int | None, typer.Option(help="Points of each axis; by default 51, and 25 for --interpolate.")
    ] = None,
    span: Annotated[float, typer.Option(help="Surface and lines reach from -span to span.")] = 1.0,
    lines: Annotated[int, typer.Option(help="How many directions --line takes.")] = 1,
    normalise: Annotated[str, typer.Option(help="Random directions: filter, layer or none.")] = "filter",
    batch_norm: Annotated[
        str, typer.Option(help="Statistics at each point: running, recalibrate, or auto (recalibrate far away).")
    ] = "auto",
    seed: Annotated[int, typer.Option(help="Of random directions and vectors.")] = 0,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", "-np", help="Processes that share the work; by default 1, or all cores if it is long."
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where to write; by default the run folder, or runs/examine-NAME.")
    ] = None,
    png: PngFolder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result files.")] = False,
) -> None:
    """Examine the loss around trained weights.

    Draws the loss landscape and measures its sharpness and its curvature (the Hessian's spectrum).
    """
    from rueda.errors import ExamineError
    from rueda.examine.request import ExamineRequest, LandscapeRequest
    from rueda.report.png import find_browser
    from rueda.world.running import running_identity

    if workers is not None and workers < 1:
        raise ExamineError("--workers", expected="1 or more", got=workers, do="correct it")
    asked = {"surface": landscape, "path": path, "lines": line, "interpolation": interpolate}
    nothing = not any((*asked.values(), sharpness, hessian))
    pictures = tuple(name for name, wanted in asked.items() if wanted or (nothing and name == "surface"))
    wanted = LandscapeRequest(
        pictures=pictures,
        points=points,
        span=span,
        num_lines=lines,
        seed=seed,
        normalise=normalise,
        batch_norm=batch_norm,
    )
    request = ExamineRequest(
        paths=tuple(paths), landscape=wanted, sharpness=sharpness, hessian=hessian, density=density, task=task,
        settings=tuple(settings or ()), checkpoint=checkpoint, num_examples=examples or None,
        splits=tuple(splits.split(",")), folder=folder, progress=not as_json,
    )  # fmt: skip
    if png is not None:
        find_browser()  # a missing browser is reported before the work, not after
    with resumable():
        _examine(request, workers)
    if running_identity().rank == 0:
        runs = [run for run in map(request.located, paths) if run.is_dir()]
        _show_results(request.result_folder(), runs, None if png is None else request.located(png), as_json)


def _examine(request: ExamineRequest, workers: int | None) -> None:
    """Compute in this process if it is the only worker or was started as a worker; otherwise start the workers."""
    from rueda.jobs import Job, run
    from rueda.world.running import running_identity

    if running_identity().size > 1:
        workers = 1
    if workers is None or workers == 1:
        from rueda.examine.job import estimate_seconds, examine_models, load_models
        from rueda.world import open_world
        from rueda.world.cores import usable_cores

        models = load_models(request)
        if workers is None:
            import torch

            most = torch.cuda.device_count() or usable_cores()
            workers = most if most > 1 and estimate_seconds(request, models) > WORTH_STARTING_SECONDS else 1
        if workers == 1:
            examine_models(request, models, open_world())
            return
        os.chdir(request.directory)  # the task file may have changed the directory
    from rueda.examine.request import ExamineAnswer

    run(Job(function="rueda.examine.job:examine", request=request, answer=ExamineAnswer), workers=workers)


def _show_results(folder: Path, runs: list[Path], png: Path | None, as_json: bool) -> None:
    """Write the page, then print a summary and the paths of the files, or the files themselves as JSON."""
    from rueda.records.curvature import Curvature
    from rueda.records.landscape import Landscape
    from rueda.report import write_figures, write_report

    files = [folder / name for name in (Landscape.FILE, Curvature.FILE) if (folder / name).is_file()]
    page = write_report([folder], folder / "report.html")
    figures = [] if png is None else write_figures(page, png)
    if as_json:
        typer.echo("\n".join(file.read_text(encoding="utf-8").strip() for file in files))
        return
    from rueda.examine.words import summary
    from rueda.terminal.table import print_prose

    for line in summary(folder):
        print_prose(line, indent="  ")
    for kind, found in (("record", files), ("page", [page]), ("figure", figures)):
        for file in found:
            typer.echo(f"{kind}: {file}")
    typer.echo(f"next: rueda report {shlex.join(map(str, dict.fromkeys([*runs, folder])))}")
