"""``rueda forecast``: how much data and compute a target error needs, from trainings on small parts of the data.

Its twins in the library: :func:`rueda.study.learning_curve.measure_learning_curve`, then
:func:`rueda.plan.data_needed.extrapolate`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rueda.cli.numbers import whole_numbers
from rueda.cli.options import PrintFile, Settings, TaskName
from rueda.cli.stopping import resumable

if TYPE_CHECKING:
    from rueda.plan import Cluster, Prediction
    from rueda.records.forecast import Forecast
    from rueda.records.profile import Profile

EPILOG = "Example: rueda forecast glyphs-cnn --target-error 0.05 --set schedule=cosine --check"


def forecast(
    task: TaskName,
    target_error: Annotated[float, typer.Option(help="Share of wrong answers on the test data, such as 0.05.")],
    sizes: Annotated[
        str | None, typer.Option(help="Training examples, by commas; by default six sizes that double.")
    ] = None,
    largest_fraction: Annotated[float, typer.Option(help="Of the training set, for the largest size.")] = 0.25,
    seeds: Annotated[int, typer.Option(help="Trainings of each size, each on its own subset.")] = 3,
    epochs: Annotated[int | None, typer.Option(help="Epochs; by default the task's own.")] = None,
    growth: Annotated[
        float, typer.Option(help="How an epoch grows with the size: 0 keeps the updates, 1 the passes.")
    ] = 0.5,
    check: Annotated[bool, typer.Option("--check", help="Train on the whole set, too, and compare.")] = False,
    profile: Annotated[
        Path | None, typer.Option(help="A profile.json of the task (rueda measure), for the time on a cluster.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="A cluster's name or TOML file; by default the profiled machine.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Workers on that cluster; 1.")] = None,
    local_batch: Annotated[int | None, typer.Option(help="Examples a worker; the recipe's.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where to write, and to go on; by default runs/forecast-TASK.")
    ] = None,
    settings: Settings = None,
    jobs: Annotated[int, typer.Option(help="Trainings at a time.")] = 2,
    as_json: PrintFile = False,
) -> None:
    """Forecast how much data and compute a target error needs, from trainings on small parts of the data."""
    from rueda.errors import ProfileError, RecipeError

    if not 0 < target_error < 1:  # said before anything is trained
        raise RecipeError(
            "--target-error", expected="a fraction between 0 and 1", got=target_error, do="give e.g. 0.05"
        )
    asked = {"--cluster": cluster, "--workers": workers, "--local-batch": local_batch}
    needless = next((name for name, value in asked.items() if value is not None), None)
    if profile is None and needless is not None:
        raise ProfileError(f"{needless} needs the task's speed: add --profile profile.json (rueda measure {task})")
    many = 1 if workers is None else workers
    if profile is not None:  # a broken one is told now, not after an hour
        _speed(profile, cluster, many, 1 if local_batch is None else local_batch)
    from rueda.plan.data_needed import extrapolate
    from rueda.study.learning_curve import measure_learning_curve
    from rueda.tasks.naming import folder_name

    target = folder or Path("runs", f"forecast-{folder_name(Path(task).stem)}")
    with resumable():
        measured = measure_learning_curve(
            task, sizes=None if sizes is None else whole_numbers("--sizes", sizes, "500,1000,2000,4000"),
            largest_fraction=largest_fraction, seeds=seeds,
            epochs=epochs, growth=growth, check=check, settings=settings or [], folder=target, jobs=jobs,
            progress=not as_json,
        )  # fmt: skip
    found = extrapolate(measured, target_error)
    if profile is not None:
        found = on_cluster(found, profile, cluster, many, found.batch if local_batch is None else local_batch)
    found.save(target / "forecast.json")
    show_forecast(found, target, as_json)


def show_forecast(found: Forecast, folder: Path, as_json: bool) -> None:
    """Draw the page, then print the table, the answer and where both are, or the file."""
    from rueda.report import write_report
    from rueda.report.forecasts import answer, error_text, rows

    page = write_report([folder / "forecast.json"], folder / "report.html")
    if as_json:
        typer.echo(found.to_json())
        return
    from rueda.terminal.table import make_table, print_table

    cells = [
        [f"{point.examples:,}", f"{point.passes:.1f}", f"{point.updates:,}", error_text(point), law, zone]
        for point, zone, law in rows(found)
    ]
    headings = ("examples", "passes", "updates", "test error", "law", "zone")
    title = f"{found.task}: test error after the last epoch, {found.examples:,} examples in all"
    print_table(make_table(title, headings, cells, left=("zone",)))
    for line in (*found.notes, *answer(found)):
        typer.echo(line)
    typer.echo(f"forecast: {folder / 'forecast.json'}\npage: {page}")


def on_cluster(found: Forecast, profile: Path, cluster: str | None, workers: int, local_batch: int) -> Forecast:
    """Add how long the need takes on a cluster, at the speed that a plan predicts."""
    from dataclasses import replace

    from rueda.records.forecast import Estimate, OnCluster

    known, place, step = _speed(profile, cluster, workers, local_batch)
    notes = [*found.notes]
    if known.task != found.task:
        notes.append(f"the profile is of task {known.task}, not of {found.task}: the time is that of its model")
    if place.speed is None and place.profile is None:
        notes.append(f"the speed of {place.name} against the profiled device is not known: taken as the same")
    if found.need is None:
        return replace(found, notes=tuple(notes))

    def hours(examples: float) -> float:
        return found.epochs * found.epoch_examples(examples) / step.images_per_second / 3600

    need = found.need.examples
    length = Estimate(
        value=hours(need.value), low=hours(need.low), high=None if need.high is None else hours(need.high)
    )  # fmt: skip
    price = place.price_per_hour
    answer = OnCluster(
        cluster=place.name, workers=workers, local_batch=local_batch, images_per_second=step.images_per_second,
        hours=length, cost=None if price is None else price * step.nodes * length.value, currency=place.currency,
    )  # fmt: skip
    if step.global_batch > found.batch:
        notes.append(
            f"the time on {place.name} is for as many examples as batch {found.batch} needs; a global batch of "
            f"{step.global_batch:,} may need more (rueda plan)"
        )
    return replace(found, cluster=answer, notes=tuple(notes))


def _speed(
    profile: Path, cluster: str | None, workers: int, local_batch: int
) -> tuple[Profile, Cluster, Prediction]:  # fmt: skip
    """Give the profile, the cluster and the predicted step."""
    from rueda.plan import load_cluster, predict, this_machine
    from rueda.records.profile import Profile

    known = Profile.load(profile)
    place = this_machine(known) if cluster in (None, "this-machine") else load_cluster(cluster or "")
    return known, place, predict(known, place, workers=workers, local_batch=local_batch)
