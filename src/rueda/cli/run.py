"""``rueda run``: a program on N workers; the twin of :func:`rueda.world.launch.launch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# What follows the program is the program's own: `rueda run -np 2 train.py -np 3 --help` passes `-np 3 --help` on.
CONTEXT = {"allow_interspersed_args": False, "ignore_unknown_options": False}


def run(
    command: Annotated[
        list[str],
        typer.Argument(metavar="PROGRAM", help="A script, a program, or with -m a module; then its arguments."),
    ],
    workers: Annotated[int | None, typer.Option("-np", "--workers", help="How many workers.")] = None,
    module: Annotated[bool, typer.Option("-m", "--module", help="PROGRAM is a module, as in python -m.")] = False,
    hosts: Annotated[str, typer.Option("-H", "--hosts", help="server1:4,server2:4: hosts and their slots.")] = "",
    hostfile: Annotated[Path | None, typer.Option(help="A host a line: server1 slots=4.")] = None,
    export: Annotated[
        list[str] | None,
        typer.Option("-x", metavar="NAME[=VALUE]", help="A variable that the workers on every host get."),
    ] = None,
    quiet_ranks: Annotated[bool, typer.Option("--quiet-ranks", help="Show rank 0 alone, without prefix.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write one file a rank into this folder.")] = None,
    ssh: Annotated[str, typer.Option(help="The ssh command, with options if need be.")] = "ssh",
    python: Annotated[str, typer.Option(help="The interpreter on the other hosts, if it has another path.")] = "",
    slurm: Annotated[bool, typer.Option("--slurm", help="Print an sbatch script instead.")] = False,
    submit: Annotated[bool, typer.Option("--submit", help="With --slurm: hand the script to sbatch.")] = False,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="With --slurm: a further option, such as --sbatch=--gres=gpu:4."),
    ] = None,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="Print a Kubeflow Trainer manifest instead.")
    ] = False,
    image: Annotated[str, typer.Option(help="With --kubernetes: the container image.")] = "",
    nodes: Annotated[int, typer.Option(help="With --slurm and --kubernetes: how many machines.")] = 1,
) -> None:
    """Run any script on N workers, on this machine or on many."""
    import os
    import shlex
    import sys

    from rueda.errors import LaunchError
    from rueda.hvd.launching import environment_additions
    from rueda.world.launch.environment import requested
    from rueda.world.launch.hosts import Host, parse_hosts, read_hostfile, take_slots
    from rueda.world.launch.plan import LaunchPlan

    if slurm and kubernetes:
        raise LaunchError("--slurm and --kubernetes are two places; choose one")
    for option, given, needs in (
        ("--submit", submit, slurm),
        ("--sbatch", sbatch, slurm),
        ("--image", image, kubernetes),
        ("--nodes", nodes != 1, slurm or kubernetes),
    ):
        if given and not needs:
            place = "--kubernetes" if option == "--image" else "--slurm"
            raise LaunchError(f"{option} has no meaning here; add {place}, or name hosts with -H")
    if hosts and hostfile:
        raise LaunchError("-H and --hostfile both name hosts; give one of them")
    if workers is None and not hosts and hostfile is None:
        raise LaunchError("the number of workers is missing; give -np, as in `rueda run -np 4 train.py`")
    listed = parse_hosts(hosts) if hosts else read_hostfile(hostfile) if hostfile else None
    here = [Host(name="localhost", slots=max(1, workers or 0))]
    chosen = take_slots(here if listed is None else listed, workers)
    environment = requested(export or [], os.environ)
    plan = LaunchPlan(
        program=tuple(command),
        module=module,
        hosts=tuple(chosen),
        environment=environment,
        additions=environment_additions({**os.environ, **environment}),
        ssh=tuple(shlex.split(ssh)),
        python=python or sys.executable,
    )
    if slurm:
        from rueda.world.launch.slurm import batch_script, submit_script

        script = batch_script(plan, nodes=nodes if listed is None else None, options=sbatch or [])
        if submit:
            typer.echo(submit_script(script))
        else:
            typer.echo(script, nl=False)
    elif kubernetes:
        from rueda.world.launch.kubernetes import manifest

        typer.echo(manifest(plan, nodes=nodes if listed is None else None, image=image), nl=False)
    else:
        from rueda.world.launch.driver import launch
        from rueda.world.launch.output import Show

        raise typer.Exit(launch(plan, show=Show(quiet_ranks=quiet_ranks, folder=output)))
