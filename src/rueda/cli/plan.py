"""``rueda plan``: throughput, efficiency, time, cost and a recipe; the twin of :func:`rueda.plan.make_plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from rueda.cli.numbers import whole_numbers

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
    epochs: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(help="Epochs of one worker; by default the profiled recipe's."),
    ] = None,
    batch: Annotated[Optional[int], typer.Option(help="The local batch; by default the best is chosen.")] = None,  # noqa: UP045
    speed: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="How many times faster a device of the cluster is than the profiled one."),
    ] = None,
    price: Annotated[Optional[float], typer.Option(help="Price of a node an hour.")] = None,  # noqa: UP045
    batch_norm: Annotated[bool, typer.Option("--batch-norm", help="The model has batch norm.")] = False,
    from_run: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--from-run", metavar="RUN", help="Compare a run with what would have been predicted for it."),
    ] = None,
    recipe_output: Annotated[
        Path, typer.Option(help="Where the recipe is written; plan.json stands beside it.")
    ] = Path("planned.toml"),
    html: Annotated[Optional[Path], typer.Option(help="Also write the plan as a page with its pictures.")] = None,  # noqa: UP045
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
    from rich.console import Console

    Console().print(_table(plan))
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
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    target = f"updates, time: to where one worker comes in {plan.base_epochs} epochs at batch {plan.base_batch:,}"
    table = Table(
        title=Text(f"{plan.task} on {plan.cluster_title or plan.cluster}"), caption=Text(f"* take this; {target}"),
        caption_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    heads = ["workers", "local batch", "global batch", "images/s", "scaling %"]
    heads += ["an example counts %"] * (plan.noise is not None) + ["updates", "time"]
    heads += [str(plan.currency)] * (plan.currency is not None)
    rows = [_cells(plan, row) for row in plan.best()]
    for number, head in enumerate(heads):
        # Figures are never cut; where the terminal is narrow, headings take two lines.
        width = max([len(cells[number]) for cells in rows] + [len(word) for word in head.split()])
        table.add_column(head, justify="right", min_width=width)
    for row, cells in zip(plan.best(), rows, strict=True):
        table.add_row(*map(Text, cells), style="bold" if row.recommended else "")
    return table


def _cells(plan: Plan, row: PlanRow) -> list[str]:
    from rueda.plan.advice import time_words

    mark = "* " * row.recommended
    cells = [f"{mark}{row.workers:,}", f"{row.local_batch:,}", f"{row.global_batch:,}", f"{row.images_per_second:,.0f}"]
    cells.append(f"{100 * row.efficiency:.1f}")
    if plan.noise is not None:
        cells.append("-" if row.statistical_efficiency is None else f"{100 * row.statistical_efficiency:.0f}")
    cells += [f"{row.updates:,.0f}", time_words(row.hours)]
    if plan.currency is not None:
        cells.append("-" if row.money is None else f"{row.money:,.2f}")
    return cells


def _tell_run(seen: Hindsight) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    who = f"{seen.workers:,} worker{'s' * (seen.workers > 1)}{', rehearsed' * seen.rehearsed}"
    table = Table(
        title=Text(f"{seen.run}: {seen.task}, {who}, global batch {seen.global_batch:,}"), box=SIMPLE_HEAD,
        pad_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    for head in ("", "predicted", "happened", "happened / predicted"):
        table.add_column(head, justify="right" if head else "left")
    for one in seen.figures:
        unit = f" {one.unit}" if one.unit else ""
        cells = ["-" if value is None else f"{value:,.4g}{unit}" for value in (one.predicted, one.happened)]
        if one.unit == "":
            cells = ["-" if value is None else f"{value:,.0f}" for value in (one.predicted, one.happened)]
        table.add_row(one.name, *cells, "-" if one.ratio is None else f"{one.ratio:.2f}")
    Console().print(table)
    reached = [f"{100 * value:.1f}" for value in seen.accuracy if value is not None]
    if reached:
        typer.echo(f"test accuracy after each epoch, %: {' '.join(reached)}")
    for text in seen.notes:
        typer.echo(text)
