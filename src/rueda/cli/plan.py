"""``rueda plan``: predicts throughput, efficiency, time and cost, and chooses a recipe.

The library's counterpart is :func:`rueda.plan.make_plan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rueda.cli import completion
from rueda.cli.numbers import whole_numbers
from rueda.cli.options import ClusterName

if TYPE_CHECKING:
    from rueda.plan.cluster import Cluster
    from rueda.records.profile import Profile

EPILOG = "Example: rueda plan profile.json --workers 1,8,64 --cluster dgx-h100"


def plan(
    context: typer.Context,
    profile: Annotated[Path, typer.Argument(help="The profile.json of `rueda measure`, or its folder.")] = Path(
        "profile.json"
    ),
    workers: Annotated[
        str,
        typer.Option("--workers", "-np", help="Numbers of workers to compare, separated by commas, or a single one."),
    ] = "1,2,4,8",
    cluster: Annotated[str, ClusterName] = "this-machine",
    epochs: Annotated[
        int | None, typer.Option(help="Epochs of one worker's training; by default those of the profiled recipe.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="The local batch; by default the best one is chosen.")] = None,
    speed: Annotated[
        float | None, typer.Option(help="How many times faster a device of the cluster is than the profiled one.")
    ] = None,
    price: Annotated[float | None, typer.Option(help="Price of a node per hour.")] = None,
    batch_norm: Annotated[
        bool | None,
        typer.Option(
            "--batch-norm/--no-batch-norm", help="Whether the model has batch norm; by default as the profile says."
        ),
    ] = None,
    mtbf_hours: Annotated[
        float | None, typer.Option(help="Mean time between failures of a node; by default that of a published cluster.")
    ] = None,
    checkpoint_seconds: Annotated[
        float | None, typer.Option(help="How long a checkpoint interrupts the training; by default 1 s for each GB.")
    ] = None,
    recover_seconds: Annotated[
        float | None, typer.Option(help="From a noticed failure until the training computes again (300).")
    ] = None,
    spares: Annotated[
        int | None, typer.Option(help="Spare nodes, which replace failed ones; by default the number that pays.")
    ] = None,
    elastic: Annotated[
        bool, typer.Option("--elastic", help="Without a spare node go on with fewer, instead of waiting for a repair.")
    ] = False,
    hours: Annotated[
        float | None, typer.Option(help="How long the training lasts, for its failures; by default as predicted.")
    ] = None,
    parallelism: Annotated[
        bool,
        typer.Option(
            "--parallelism",
            help="Also predict sharded, pipeline and tensor parallelism; shown anyway if the model does not fit.",
        ),
    ] = False,
    sync_every: Annotated[
        str | None,
        typer.Option(
            "--sync-every",
            help="Also predict exchanges of parameters every so many updates, e.g. 8,64; shown anyway if they save a "
            "fifth of the time.",
        ),
    ] = None,
    sync_delay: Annotated[
        int, typer.Option("--sync-delay", help="Updates that are computed while such an exchange is under way.")
    ] = 0,
    from_run: Annotated[
        Path | None,
        typer.Option(
            "--from-run",
            metavar="RUN",
            help="Compare a run with what the profile predicts for it.",
            autocompletion=completion.results,
        ),
    ] = None,
    recipe_output: Annotated[
        Path,
        typer.Option(help="The recipe file to write, with plan.json beside it. Other plans there are kept, renamed."),
    ] = Path("planned.toml"),
    confirm: Annotated[
        bool,
        typer.Option("--confirm", help="Rehearse the recipe against one worker on a quarter of the epochs."),
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Also write the plan as an HTML page with figures.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Plan workers, batch, rate, time and cost."""
    from rueda.cli.plan_files import save_plan
    from rueda.cli.plan_output import print_clusters, print_comparison, print_plan
    from rueda.plan import cluster_names, compare_run, make_plan
    from rueda.records.environment import environment
    from rueda.records.profile import Profile
    from rueda.records.run import Run

    if cluster == "list":
        print_clusters(cluster_names())
        return
    measured = Profile.load(profile)
    if confirm:
        from rueda.cli.plan_confirmation import check_confirmable

        check_confirmable(measured, as_json=as_json)
    machines = _cluster(cluster, measured, speed, price)
    own = _failures(mtbf_hours, checkpoint_seconds, recover_seconds, spares, elastic)
    if from_run is not None:
        _refuse_options(context, but=("profile", "cluster", "speed", "price", "from_run", "as_json"))
        comparison = compare_run(Run(from_run), measured, machines)
        if as_json:
            typer.echo(comparison.to_json())
        else:
            print_comparison(comparison)
        return
    found = make_plan(
        measured, _with_failures(machines, own), workers=whole_numbers("--workers", workers, "1,2,4,8"),
        epochs=epochs, batch=batch, batch_norm=batch_norm, hours=hours, always_failures=bool(own),
        parallelism=parallelism, environment=environment(), sync_delay=sync_delay,
        sync_every=() if sync_every is None else whole_numbers("--sync-every", sync_every, "8,64"),
    )  # fmt: skip
    file, kept = save_plan(found, recipe_output)
    if html is not None:
        from rueda.report import write_report

        write_report(file, html)
    if as_json:
        typer.echo(found.to_json())
        return
    print_plan(found, recipe_output, file, html)
    if kept:
        typer.echo(f"the former plan is kept: {', '.join(map(str, kept))}")
    if confirm:
        from rueda.cli.plan_confirmation import rehearse_plan

        rehearse_plan(found, measured, epochs)


def _refuse_options(context: typer.Context, *, but: Sequence[str]) -> None:
    """Refuse the options that ``--from-run`` would ignore."""
    from rueda.errors import ProfileError

    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if source is not None and source.name == "COMMANDLINE" and parameter.name not in but:
            raise ProfileError(f"--from-run compares a run and makes no plan: leave {parameter.opts[0]} out")


def _cluster(name: str, profile: Profile, speed: float | None, price: float | None) -> Cluster:
    from dataclasses import replace

    from rueda.errors import ProfileError
    from rueda.plan import load_cluster
    from rueda.plan.cluster import THIS_MACHINE

    if name == THIS_MACHINE and speed is not None:
        raise ProfileError("--speed compares another cluster's device with the profiled one: add --cluster NAME")
    found = load_cluster(name, profile)
    changes = {"speed": speed, "price_per_hour": price}
    return replace(found, **{key: value for key, value in changes.items() if value is not None})  # type: ignore[arg-type]


def _failures(
    mtbf_hours: float | None, checkpoint_seconds: float | None, recover_seconds: float | None, spares: int | None,
    elastic: bool,
) -> dict[str, float]:  # fmt: skip
    """Return what the options say about failures; a checkpoint of their length is a synchronous one."""
    values = {"mtbf_hours": mtbf_hours, "checkpoint_seconds": checkpoint_seconds, "recover_seconds": recover_seconds}
    found = {name: value for name, value in values.items() if value is not None}
    return found | ({} if spares is None else {"spares": spares}) | ({"elastic": True} if elastic else {})


def _with_failures(cluster: Cluster, values: dict[str, float]) -> Cluster:
    """Return the cluster with other values in its table ``[failures]``."""
    from dataclasses import replace

    from rueda.plan.failures import FailureModel

    if not values:
        return cluster
    given = {"source": "as given"} if "mtbf_hours" in values else {}
    return replace(cluster, failures=replace(cluster.failures or FailureModel(), **values, **given))  # type: ignore[arg-type]
