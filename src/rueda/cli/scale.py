"""``rueda scale``: runs a serial script on N workers, as :mod:`rueda.check.scale` does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rueda.cli.options import Grace, StallTimeout, StallWarning

# Arguments that follow the script belong to it.
CONTEXT = {"allow_interspersed_args": False, "ignore_unknown_options": False}
EPILOG = "Example: rueda scale -np 4 train.py --lr 0.1"


def scale(
    command: Annotated[
        list[str], typer.Argument(metavar="SCRIPT", help="A Python script that trains alone; then its arguments.")
    ],
    workers: Annotated[int | None, typer.Option("-np", "--workers", help="Number of workers.")] = None,
    loss: Annotated[str, typer.Option(help="The loss of a batch is the mean or the sum of its examples' losses.")] = (
        "mean"
    ),
    verify: Annotated[
        int, typer.Option(metavar="K", help="Compare the first K gradients of each loss with one worker's; 0: none.")
    ] = 2,
    load: Annotated[
        str,
        typer.Option(help="Examples that each worker loads: share, whole, or auto: the share if nothing is random."),
    ] = "auto",
    batch_norm: Annotated[
        str, typer.Option(help="Statistics of batch norm: of each worker's share, or synchronised.")
    ] = "worker",
    share_evaluation: Annotated[
        bool, typer.Option("--share-evaluation", help="Share out forward passes without gradients; gather the outputs.")
    ] = False,
    weak: Annotated[
        bool, typer.Option("--weak", help="Each worker keeps the script's batch; the rate follows.")
    ] = False,
    recipe: Annotated[
        Path | None, typer.Option(help="With --weak: a recipe with the rule and warm-up; by default linear, 5 epochs.")
    ] = None,
    hosts: Annotated[str, typer.Option("-H", "--hosts", help="Hosts and their slots: server1:4,server2:4.")] = "",
    hostfile: Annotated[Path | None, typer.Option(help="File with one host per line: server1 slots=4.")] = None,
    grace: Grace = None,
    stall_warning: StallWarning = None,
    stall_timeout: StallTimeout = None,
) -> None:
    """Run a serial script on N workers, unchanged.

    Every batch is the one that the script alone would draw; each worker takes its share, and gradients are averaged.
    """
    from rueda.check.scale.launching import scale_script
    from rueda.check.scale.options import ScaleOptions
    from rueda.errors import ScaleError
    from rueda.hvd.runner.launch_plan import plan_job
    from rueda.records import Recipe
    from rueda.world.stall.limits import stall_variables

    if recipe is not None and not weak:
        raise ScaleError("--recipe has an effect only with --weak; add that, or remove --recipe")
    chosen = Recipe(scaling="linear", warmup_epochs=5.0) if recipe is None else Recipe.load(recipe)
    options = ScaleOptions(
        loss=loss, verify=0 if weak else verify, load=load, batch_norm=batch_norm, weak=weak,
        share_evaluation=share_evaluation, scaling=chosen.scaling, warmup_epochs=chosen.warmup_epochs,
    )  # fmt: skip
    plan = plan_job(
        command, workers=workers, hosts=hosts, hostfile=hostfile,
        environment=stall_variables(stall_warning, stall_timeout, None),
    )  # fmt: skip
    raise typer.Exit(scale_script(plan, options))
