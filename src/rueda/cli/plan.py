"""``rueda plan``: predicts throughput, efficiency, time and cost, and chooses a recipe.

The library's counterpart is :func:`rueda.plan.make_plan`.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rueda.cli import completion
from rueda.cli.numbers import whole_numbers
from rueda.cli.options import ClusterName
from rueda.terminal.numbers import NONE, money, predicted_time, things

if TYPE_CHECKING:
    from rueda.plan.cluster import Cluster
    from rueda.plan.run_comparison import RunComparison
    from rueda.records.plan import Plan, PlanRow
    from rueda.records.profile import Profile
    from rueda.terminal.table import TextTable

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
    from rueda.plan import cluster_names, compare_run, make_plan
    from rueda.records.environment import environment
    from rueda.records.profile import Profile
    from rueda.records.run import Run

    if cluster == "list":
        _print_clusters(cluster_names())
        return
    measured = Profile.load(profile)
    if confirm:
        _check_confirmable(measured, as_json=as_json)
    machines = _cluster(cluster, measured, speed, price)
    own = _failures(mtbf_hours, checkpoint_seconds, recover_seconds, spares, elastic)
    if from_run is not None:
        _refuse_options(context, but=("profile", "cluster", "speed", "price", "from_run", "as_json"))
        comparison = compare_run(Run(from_run), measured, machines)
        if as_json:
            typer.echo(comparison.to_json())
        else:
            _print_comparison(comparison)
        return
    found = make_plan(
        measured, _with_failures(machines, own), workers=whole_numbers("--workers", workers, "1,2,4,8"),
        epochs=epochs, batch=batch, batch_norm=batch_norm, hours=hours, always_failures=bool(own),
        parallelism=parallelism, environment=environment(), sync_delay=sync_delay,
        sync_every=() if sync_every is None else whole_numbers("--sync-every", sync_every, "8,64"),
    )  # fmt: skip
    from rueda.errors import ProfileError
    from rueda.files.atomic import check_writable, write_atomically

    check_writable(recipe_output)
    file = recipe_output.with_name("plan.json")
    check_writable(file)
    if any(path.exists() and not path.is_file() for path in (recipe_output, file)):
        raise ProfileError(f"--recipe-output {recipe_output}: expected a regular file, with plan.json beside it")
    if recipe_output.name == file.name:
        raise ProfileError(f"--recipe-output {recipe_output}: this is the plan itself; name the recipe otherwise")
    kept = [] if _is_same_plan(found, recipe_output, file) else _rename_existing([recipe_output, file])
    write_atomically(recipe_output, found.recipe.encode())
    found.save(file)
    if html is not None:
        from rueda.report import write_report

        write_report(file, html)
    if as_json:
        typer.echo(found.to_json())
        return
    _print_plan(found, recipe_output, file, html)
    if kept:
        typer.echo(f"the former plan is kept: {', '.join(map(str, kept))}")
    if confirm:
        _confirm(found, measured, epochs)


def _confirm(plan: Plan, profile: Profile, epochs: int | None) -> None:
    """Rehearse a plan against one worker with the same cooldown, and say whether it holds so far."""
    from rueda.plan.choice import with_cooldown
    from rueda.plan.planning import base_recipe
    from rueda.records.metric import TOLERANCE
    from rueda.records.recipe.recipe import Recipe
    from rueda.study.confirmation import DOUBTED, confirm
    from rueda.terminal.metrics import write_number
    from rueda.terminal.table import print_prose

    base = base_recipe(profile)
    one = with_cooldown(base if epochs is None else base.change(epochs=epochs))
    task = plan.task if plan.task_file is None else plan.task_file.path
    tolerance = TOLERANCE if profile.tolerance is None else profile.tolerance
    found = confirm(task, one, Recipe.from_toml(plan.recipe), tolerance=tolerance, progress=True)
    on = "validation" if found.on_validation else "test"
    reached = "diverged" if found.planned is None else write_number(found.metric, found.planned)
    name = f"{found.metric.name}{', %' * found.metric.percent}"
    text = f"confirm: {on} {name}: one worker {write_number(found.metric, found.one_worker)} after "
    text += f"{things(found.epochs[0], 'epoch')}, planned {reached} after {things(found.epochs[1], 'epoch')}: "
    print_prose(text + ("the plan holds so far." if found.holds else "doubtful; use fewer workers or more epochs."))
    limit = f"{100 * DOUBTED * found.tolerance:g} {'points' if found.metric.percent else '%'}"
    print_prose(
        f"This is one seed at {_shares(found.shares)} of the training. It finds a plan that diverges or falls behind "
        f"by more than {limit}; it cannot tell whether a smaller difference remains at the end."
    )


def _shares(shares: tuple[float, float]) -> str:
    """Write the shares of the trainings of one worker and of the plan, as one if they are equal.

    >>> _shares((0.25, 0.25)), _shares((0.25, 2 / 7))
    ('25 %', '25 % (one worker) and 29 % (planned)')
    """
    one, planned = (f"{100 * share:.0f} %" for share in shares)
    return one if one == planned else f"{one} (one worker) and {planned} (planned)"


def _check_confirmable(profile: Profile, *, as_json: bool) -> None:
    """Refuse to confirm a plan of a training that only a script knows, or where nothing but the plan is printed."""
    from rueda.errors import ProfileError
    from rueda.tasks.naming import BUILTIN_TASKS

    if as_json:
        raise ProfileError("--json prints the plan and nothing else: leave --confirm out")
    if profile.task_file is None and profile.task not in BUILTIN_TASKS:
        raise ProfileError(
            "--confirm", expected="a profile of a built-in task or of a task file", got=profile.task,
            do="leave it out: only your script can train it",
        )  # fmt: skip


def _refuse_options(context: typer.Context, *, but: Sequence[str]) -> None:
    """Refuse the options that ``--from-run`` would ignore."""
    from rueda.errors import ProfileError

    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if source is not None and source.name == "COMMANDLINE" and parameter.name not in but:
            raise ProfileError(f"--from-run compares a run and makes no plan: leave {parameter.opts[0]} out")


def _is_same_plan(plan: Plan, recipe: Path, file: Path) -> bool:
    """Return whether the files hold an equal plan, apart from the time and the command that made it."""
    from dataclasses import replace

    from rueda.errors import RuedaError
    from rueda.records.plan import Plan

    try:
        former = replace(Plan.load(file), command=plan.command, environment=plan.environment)
        return former == Plan.from_json(plan.to_json()) and recipe.read_bytes() == plan.recipe.encode()
    except (OSError, RuedaError):
        return False


def _rename_existing(files: Sequence[Path]) -> list[Path]:
    """Rename the files that exist to ``NAME.1.SUFFIX``, or the first number that is free for all; return the new names.

    Somebody may have edited the recipe or may still be training with it, so a new plan does not overwrite it.
    """
    from rueda.errors import ProfileError

    for number in count(1):
        renamed = {file: file.with_name(f"{file.stem}.{number}{file.suffix}") for file in files}
        if not any(new.exists() for new in renamed.values()):
            break
    try:
        return [file.rename(new) for file, new in renamed.items() if file.exists()]
    except OSError as error:
        raise ProfileError(f"cannot rename {error.filename}: {error.strerror}; use another --recipe-output") from None


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


def _print_clusters(names: list[str]) -> None:
    from rueda.plan import load_cluster
    from rueda.plan.cluster import THIS_MACHINE

    width = max(map(len, names))
    for name in names:
        title = "the profiled machine" if name == THIS_MACHINE else load_cluster(name).title
        typer.echo(f"{name:<{width}}  {title}")


def _print_plan(plan: Plan, recipe: Path, file: Path, html: Path | None) -> None:
    from rueda.terminal.table import print_prose, print_table

    print_table(_table(plan))
    for table in _failure_tables(plan):
        print_table(table)
    for table in (*_form_tables(plan), *_exchange_tables(plan)):
        print_table(table)
    if plan.form_reason:
        print_prose(f"parallel form: {plan.form_reason}")
    for text in plan.advice:
        print_prose(text)
    for text in plan.warnings:
        print_prose(f"warning: {text}")
    typer.echo("not known:")
    for text in plan.unknown:
        print_prose(f"  {text}", indent="  ")
    typer.echo(f"recipe: {recipe}\nplan: {file}")
    if html is not None:
        typer.echo(f"page: {html}")
    quoted, task = shlex.quote(str(recipe)), _trainable(plan)
    if plan.joining is not None and plan.joining.grows and task is not None:
        typer.echo("workers that join, stopped at each milestone and resumed with more:")
        for command in plan.joining.commands(task, quoted):
            typer.echo(f"  {command}")
    typer.echo(f"next: {_next_step(plan, task, quoted)}")


def _trainable(plan: Plan) -> str | None:
    """Return the task as `rueda train` takes it; None if only a script of the user knows how to train it."""
    from rueda.tasks.naming import BUILTIN_TASKS

    if plan.task_file is not None:
        return plan.task_file.argument()
    return plan.task if plan.task in BUILTIN_TASKS else None


def _next_step(plan: Plan, task: str | None, recipe: str) -> str:
    """Return the command that trains by the plan."""
    workers = plan.chosen.workers
    if task is None:  # a profile of a user's own training loop
        return f"use the values of {recipe} in your training script, then: rueda run -np {workers} python SCRIPT"
    return f"rueda train {task} --recipe {recipe}{' --rehearse' * (workers > 1)}"


def _table(plan: Plan) -> TextTable:
    from rueda.terminal.table import TextTable

    epochs = things(plan.base_epochs, "epoch")
    target = (
        f"updates, time: what the recipe runs, to the result of one worker in {epochs} at batch {plan.base_batch:,}"
    )
    heads = ["workers", "local batch", "global batch", f"{plan.unit}/s", "scaling %"]
    heads += ["statistical %"] * (plan.noise is not None) + ["updates", "time"]
    heads += [str(plan.currency)] * (plan.currency is not None)
    rows = plan.best()
    return TextTable(
        f"{plan.task} on {plan.cluster_title or plan.cluster}", heads, [_cells(plan, row) for row in rows],
        caption=f"* recommended; {target}", bold=[number for number, row in enumerate(rows) if row.recommended],
    )  # fmt: skip


def _failure_tables(plan: Plan) -> list[TextTable]:
    """Return goodput against interval and spares, as the page has it; nothing where failures are negligible."""
    if plan.failures is None:
        return []
    from rueda.report.plan_failures import by_interval, by_spares

    return [table.on_terminal(table.title) for table in (by_interval(plan.failures), by_spares(plan.failures))]


def _form_tables(plan: Plan) -> list[TextTable]:
    """Return the parallel forms, as the page has them; nothing where they were not predicted."""
    if not plan.forms:
        return []
    from rueda.report.parallelism import predicted_table

    return [table.on_terminal(table.title) for table in [predicted_table(plan)]]


def _exchange_tables(plan: Plan) -> list[TextTable]:
    """Return the intervals between exchanges, as the page has them; nothing where they were not predicted."""
    if not plan.exchanges:
        return []
    from rueda.report.plan_exchanges import by_sync_every

    table = by_sync_every(plan)
    return [table.on_terminal(table.title)]


def _cells(plan: Plan, row: PlanRow) -> list[str]:
    mark = "* " * row.recommended
    batch = f"{row.global_batch:,}" + f" to {row.final_batch:,}" * (row.growth_factor is not None)
    cells = [f"{mark}{row.workers:,}", f"{row.local_batch:,}", batch, f"{row.images_per_second:,.0f}"]
    cells.append(f"{100 * row.efficiency:.1f}")
    if plan.noise is not None:
        cells.append(NONE if row.statistical_efficiency is None else f"{100 * row.statistical_efficiency:.0f}")
    cells += [f"{row.updates:,.0f}", predicted_time(3600 * row.hours)]
    if plan.currency is not None:
        cells.append(money(row.money))
    return cells


def _print_comparison(seen: RunComparison) -> None:
    from rueda.terminal.metrics import write_number  # not above: it loads all records, a quarter of a command's start
    from rueda.terminal.table import TextTable, print_prose, print_table

    who = f"{things(seen.workers, 'worker')}{', rehearsed' * seen.rehearsed}"
    rows = []
    for one in seen.figures:
        unit = f" {one.unit}" if one.unit else ""
        digits = ",.4g" if one.unit else ",.0f"
        cells = [NONE if value is None else f"{value:{digits}}{unit}" for value in (one.predicted, one.measured)]
        rows.append([one.name, *cells, NONE if one.ratio is None else f"{one.ratio:.2f}"])
    title = f"{seen.run}: {seen.task}, {who}, global batch {seen.global_batch:,}"
    print_table(TextTable(title, ("", "predicted", "measured", "measured / predicted"), rows, left=("",)))
    reached = [write_number(seen.metric, value) for value in seen.accuracy if value is not None]
    if reached:
        typer.echo(f"test {seen.metric.name} after each epoch{', %' * seen.metric.percent}: {' '.join(reached)}")
    for text in seen.notes:
        print_prose(text)
