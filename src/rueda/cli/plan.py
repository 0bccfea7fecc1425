"""``rueda plan``: throughput, efficiency, time, cost and a recipe; the twin of :func:`rueda.plan.make_plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rueda.cli.numbers import whole_numbers
from rueda.terminal.numbers import NONE, predicted_time, things

if TYPE_CHECKING:
    from rich.table import Table

    from rueda.plan.cluster import Cluster
    from rueda.plan.hindsight import Hindsight
    from rueda.records.plan import Plan, PlanRow
    from rueda.records.profile import Profile

EPILOG = "Example: rueda plan profile.json --workers 1,2,4,8,16,64,512 --cluster dgx-h100 --html plan.html"


def plan(
    profile: Annotated[Path, typer.Argument(help="profile.json of `rueda measure`, or its folder.")] = Path(
        "profile.json"
    ),
    workers: Annotated[
        str, typer.Option("--workers", "-np", help="Numbers of workers to compare, by commas; one plans for as many.")
    ] = "1,2,4,8",
    cluster: Annotated[
        str, typer.Option(help="A shipped cluster (`--cluster list` names them) or a TOML file.")
    ] = "this-machine",
    epochs: Annotated[int | None, typer.Option(help="Epochs of one worker; by default the profiled recipe's.")] = None,
    batch: Annotated[int | None, typer.Option(help="The local batch; by default the best is chosen.")] = None,
    speed: Annotated[
        float | None, typer.Option(help="How many times faster a device of the cluster is than the profiled one.")
    ] = None,
    price: Annotated[float | None, typer.Option(help="Price of a node an hour.")] = None,
    batch_norm: Annotated[bool, typer.Option("--batch-norm", help="The model has batch norm.")] = False,
    from_run: Annotated[
        Path | None,
        typer.Option("--from-run", metavar="RUN", help="Compare a run with what would have been predicted for it."),
    ] = None,
    recipe_output: Annotated[
        Path, typer.Option(help="Where the recipe is written; plan.json stands beside it.")
    ] = Path("planned.toml"),
    html: Annotated[Path | None, typer.Option(help="Also write the plan as a page with its pictures.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Plan a training: how many workers, which batch and rate, how long, what it costs."""
    from rueda.plan import cluster_names, compare_run, make_plan
    from rueda.records.environment import environment
    from rueda.records.profile import Profile
    from rueda.records.run import Run

    if cluster == "list":
        _list(cluster_names())
        return
    measured = Profile.load(profile)
    machines = _cluster(cluster, measured, speed, price)
    if from_run is not None:
        seen = compare_run(Run(from_run), measured, machines)
        if as_json:
            typer.echo(seen.to_json())
        else:
            _tell_run(seen)
        return
    found = make_plan(
        measured, machines, workers=whole_numbers("--workers", workers, "1,2,4,8"), epochs=epochs, batch=batch,
        batch_norm=batch_norm, environment=(about := environment()), command=about["command"],
    )  # fmt: skip
    from rueda.files.atomic import write_atomically

    write_atomically(recipe_output, found.recipe.encode())
    file = recipe_output.with_name("plan.json")
    found.save(file)
    if html is not None:
        from rueda.report import write_report

        write_report(file, html)
    if as_json:
        typer.echo(found.to_json())
        return
    _tell(found, recipe_output, file, html)


def _cluster(name: str, profile: Profile, speed: float | None, price: float | None) -> Cluster:
    from dataclasses import replace

    from rueda.plan import load_cluster, this_machine
    from rueda.plan.cluster import THIS_MACHINE

    found = this_machine(profile) if name == THIS_MACHINE else load_cluster(name)
    changes = {"speed": speed, "price_per_hour": price}
    return replace(found, **{key: value for key, value in changes.items() if value is not None})  # type: ignore[arg-type]


def _list(names: list[str]) -> None:
    from rueda.plan import load_cluster
    from rueda.plan.cluster import THIS_MACHINE

    width = max(map(len, names))
    for name in names:
        title = "the machine of the profile" if name == THIS_MACHINE else load_cluster(name).title
        typer.echo(f"{name:<{width}}  {title}")


def _tell(plan: Plan, recipe: Path, file: Path, html: Path | None) -> None:
    from rueda.terminal.table import print_table

    print_table(_table(plan))
    for text in plan.advice:
        typer.echo(text)
    for text in plan.warnings:
        typer.echo(f"warning: {text}")
    typer.echo("not known:")
    for text in plan.unknown:
        typer.echo(f"  {text}")
    typer.echo(f"recipe: {recipe}\nplan: {file}")
    if html is not None:
        typer.echo(f"page: {html}")
    chosen = plan.chosen
    typer.echo(f"next: rueda train {plan.task} --recipe {recipe}" + " --rehearse" * (chosen.workers > 1))


def _table(plan: Plan) -> Table:
    from rueda.terminal.table import make_table

    target = f"updates, time: to where one worker comes in {plan.base_epochs} epochs at batch {plan.base_batch:,}"
    heads = ["workers", "local batch", "global batch", "images/s", "scaling %"]
    heads += ["an example counts %"] * (plan.noise is not None) + ["updates", "time"]
    heads += [str(plan.currency)] * (plan.currency is not None)
    rows = plan.best()
    return make_table(
        f"{plan.task} on {plan.cluster_title or plan.cluster}", heads, [_cells(plan, row) for row in rows],
        caption=f"* take this; {target}", bold=[number for number, row in enumerate(rows) if row.recommended],
    )  # fmt: skip


def _cells(plan: Plan, row: PlanRow) -> list[str]:
    mark = "* " * row.recommended
    cells = [f"{mark}{row.workers:,}", f"{row.local_batch:,}", f"{row.global_batch:,}", f"{row.images_per_second:,.0f}"]
    cells.append(f"{100 * row.efficiency:.1f}")
    if plan.noise is not None:
        cells.append(NONE if row.statistical_efficiency is None else f"{100 * row.statistical_efficiency:.0f}")
    cells += [f"{row.updates:,.0f}", predicted_time(3600 * row.hours)]
    if plan.currency is not None:
        cells.append(NONE if row.money is None else f"{row.money:,.2f}")
    return cells


def _tell_run(seen: Hindsight) -> None:
    from rueda.terminal.table import make_table, print_table

    who = f"{things(seen.workers, 'worker')}{', rehearsed' * seen.rehearsed}"
    rows = []
    for one in seen.figures:
        unit = f" {one.unit}" if one.unit else ""
        digits = ",.4g" if one.unit else ",.0f"
        cells = [NONE if value is None else f"{value:{digits}}{unit}" for value in (one.predicted, one.happened)]
        rows.append([one.name, *cells, NONE if one.ratio is None else f"{one.ratio:.2f}"])
    title = f"{seen.run}: {seen.task}, {who}, global batch {seen.global_batch:,}"
    print_table(make_table(title, ("", "predicted", "happened", "happened / predicted"), rows, left=("",)))
    reached = [f"{100 * value:.1f}" for value in seen.accuracy if value is not None]
    if reached:
        typer.echo(f"test accuracy after each epoch, %: {' '.join(reached)}")
    for text in seen.notes:
        typer.echo(text)
