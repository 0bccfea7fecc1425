"""``rueda forecast``: predicts how much data and compute a target error needs, from trainings on subsets of the data.

In the library: :func:`rueda.study.learning_curve.measure_learning_curve`, then
:func:`rueda.plan.data_needed.extrapolate`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rueda.cli.numbers import whole_numbers
from rueda.cli.options import ClusterName, Jobs, PrintFile, Settings, TaskName
from rueda.cli.stopping import resumable
from rueda.cli.study_output import default_folder, show_result

if TYPE_CHECKING:
    from rueda.plan import Cluster, Prediction
    from rueda.records.forecast import Forecast
    from rueda.records.profile import Profile

EPILOG = "Example: rueda forecast glyphs-cnn --target-error 0.12"


def forecast(
    task: TaskName,
    target_error: Annotated[
        float,
        typer.Option(
            "--target-error",
            "--target",
            help="Fraction of wrong answers on the test set, such as 0.05; or a loss, or another metric, to reach.",
        ),
    ],
    target_metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="The metric of the target; by default the task's primary one.")
    ] = None,
    sizes: Annotated[str | None, typer.Option(help="Sizes of the subsets; by default six that double.")] = None,
    largest_fraction: Annotated[
        float | None, typer.Option(help="Largest default size as a fraction of the training set; by default 0.25.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Trainings of each size, each on its own subset.")] = 3,
    epochs: Annotated[int | None, typer.Option(help="Epochs; by default those of the task's recipe.")] = None,
    growth: Annotated[float, typer.Option(help="0: all sizes have the same updates; 1: the same epochs.")] = 0.5,
    check: Annotated[bool, typer.Option("--check", help="Also train on the whole set, and compare.")] = False,
    profile: Annotated[Path | None, typer.Option(help="Profile of the task, to predict the time on a cluster.")] = None,
    cluster: Annotated[str | None, ClusterName] = None,
    workers: Annotated[int | None, typer.Option(help="Workers on that cluster; by default 1.")] = None,
    local_batch: Annotated[int | None, typer.Option(help="Local batch on it; by default the recipe's.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder; by default runs/forecast-TASK.")] = None,
    settings: Settings = None,
    jobs: Jobs = 2,
    as_json: PrintFile = False,
) -> None:
    """Forecast the data that a target error needs.

    A power law is fitted to trainings on small parts of the training set; it also gives the compute.
    """
    from rueda.errors import ProfileError, RecipeError

    if not 0 < target_error < float("inf"):  # refuse before anything is trained
        expected = "a fraction between 0 and 1, or a loss"
        raise RecipeError("--target-error", expected=expected, got=target_error, do="give e.g. 0.05")
    if sizes is not None and largest_fraction is not None:
        raise RecipeError("--sizes and --largest-fraction both choose the sizes of the subsets; leave one of them out")
    asked = {"--cluster": cluster, "--workers": workers, "--local-batch": local_batch}
    needless = next((name for name, value in asked.items() if value is not None), None)
    if profile is None and needless is not None:
        raise ProfileError(f"{needless} needs the task's speed: add --profile profile.json (rueda measure {task})")
    many = 1 if workers is None else workers
    if profile is not None:  # a damaged one is refused now, not after the trainings
        _speed(profile, cluster, many, 1 if local_batch is None else local_batch)
    from rueda.plan.data_needed import extrapolate
    from rueda.study.learning_curve import measure_learning_curve

    target = folder or default_folder(task, "forecast")
    with resumable():
        measured = measure_learning_curve(
            task, sizes=None if sizes is None else whole_numbers("--sizes", sizes, "500,1000,2000,4000"),
            largest_fraction=0.25 if largest_fraction is None else largest_fraction, seeds=seeds,
            epochs=epochs, growth=growth, check=check, settings=settings or [], folder=target, jobs=jobs,
            progress=not as_json, metric=target_metric, target=target_error,
        )  # fmt: skip
    found = extrapolate(measured, target_error)
    if profile is not None:
        found = _on_cluster(found, profile, cluster, many, found.batch if local_batch is None else local_batch)
    found.save(target / "forecast.json")
    _show(found, target, as_json)


def _show(found: Forecast, folder: Path, as_json: bool) -> None:
    """Print the points, the fitted law and the answer, or the file, and write the page."""
    from rueda.report.forecasts import answer, to_table

    title = f"{found.task}: {found.error_name} after the last epoch; the training set has {found.examples:,} examples"
    lines = [*found.notes, *answer(found)]
    if found.refusals and 'schedule = "constant"' in found.recipe:
        lines.append(
            "The learning rate is constant, which can make the error after the last epoch noisy; --set schedule=cosine "
            "(in another --folder) may help."
        )
    show_result(found, folder, as_json, to_table(found).on_terminal(title), *lines, kind="forecast")


def _on_cluster(found: Forecast, profile: Path, cluster: str | None, workers: int, local_batch: int) -> Forecast:
    """Add how long the training that is needed takes on a cluster, at the predicted throughput."""
    from rueda.plan.on_cluster import time_on_cluster

    known, place, _ = _speed(profile, cluster, workers, local_batch)
    return time_on_cluster(found, known, place, workers=workers, local_batch=local_batch)


def _speed(
    profile: Path, cluster: str | None, workers: int, local_batch: int
) -> tuple[Profile, Cluster, Prediction]:  # fmt: skip
    """Return the profile, the cluster and the predicted step time."""
    from rueda.plan import load_cluster, predict
    from rueda.plan.cluster import THIS_MACHINE
    from rueda.records.profile import Profile

    known = Profile.load(profile)
    place = load_cluster(cluster or THIS_MACHINE, known)
    return known, place, predict(known, place, workers=workers, local_batch=local_batch)
