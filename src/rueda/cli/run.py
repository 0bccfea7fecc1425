"""``rueda run``: runs a program on N workers, as :func:`rueda.world.launch.launch` does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rueda.cli.options import (
    DiscoveryScript,
    ElasticTimeout,
    Grace,
    Hostfile,
    Hosts,
    MaxWorkers,
    MinWorkers,
    Restarts,
    SilenceTimeout,
    SshCommand,
    StallDump,
    StallTimeout,
    StallWarning,
    elastic_options,
)

# Arguments that follow the program belong to it: `rueda run -np 2 train.py -np 3 --help` passes `-np 3 --help` on.
CONTEXT = {"allow_interspersed_args": False, "ignore_unknown_options": False}


def run(
    command: Annotated[
        list[str],
        typer.Argument(metavar="PROGRAM", help="A script, a program, or with -m a module; then its arguments."),
    ],
    workers: Annotated[int | None, typer.Option("-np", "--workers", help="Number of workers.")] = None,
    module: Annotated[bool, typer.Option("-m", "--module", help="PROGRAM is a module, as in python -m.")] = False,
    hosts: Hosts = "",
    hostfile: Hostfile = None,
    export: Annotated[
        list[str] | None,
        typer.Option("-x", metavar="NAME[=VALUE]", help="Set a variable for all workers; NAME alone: as it is here."),
    ] = None,
    quiet_ranks: Annotated[bool, typer.Option("--quiet-ranks", help="Show only rank 0, without prefix.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write one file for each rank into this folder.")] = None,
    grace: Grace = None,
    ssh: SshCommand = "ssh",
    python: Annotated[str, typer.Option(help="Path of Python on the other hosts, if it differs.")] = "",
    slurm: Annotated[bool, typer.Option("--slurm", help="Print a Slurm batch script instead of running.")] = False,
    submit: Annotated[bool, typer.Option("--submit", help="With --slurm: submit the script with sbatch.")] = False,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="With --slurm: an option of sbatch, as in --sbatch=--gres=gpu:4."),
    ] = None,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="Print a manifest for Kubernetes instead of running.")
    ] = False,
    image: Annotated[str, typer.Option(help="With --kubernetes: the container image.")] = "",
    nodes: Annotated[int, typer.Option(help="With --slurm or --kubernetes: number of machines.")] = 1,
    legacy_keras: Annotated[
        bool, typer.Option("--legacy-keras", help="Run a script for Keras 2 and tensorflow_addons.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Watch the workers, and report mistakes at the end, as rueda check does.")
    ] = False,
    least: MinWorkers = None,
    most: MaxWorkers = None,
    restarts: Restarts = None,
    timeout: SilenceTimeout = None,
    elastic_timeout: ElasticTimeout = None,
    discovery_script: DiscoveryScript = "",
    stall_warning: StallWarning = None,
    stall_timeout: StallTimeout = None,
    stall_dump: StallDump = None,
) -> None:
    """Run any script on N workers.

    They run on this machine, on several by ssh, or as a job of Slurm or Kubernetes.
    """
    import os

    from rueda.errors import LaunchError
    from rueda.hvd.runner.launch_plan import plan_job
    from rueda.world.identity import identify
    from rueda.world.launch.environment import referenced, requested
    from rueda.world.launch.task import TASK_LAUNCHERS, run_as_task
    from rueda.world.stall.limits import stall_variables

    if slurm and kubernetes:
        raise LaunchError("--slurm and --kubernetes exclude each other; give one of them")
    for option, value, needs in (
        ("--submit", submit, "--slurm"),
        ("--sbatch", sbatch, "--slurm"),
        ("--image", image, "--kubernetes"),
        ("--nodes", nodes != 1, "--slurm or --kubernetes"),
    ):
        if value and not ((slurm and "--slurm" in needs) or (kubernetes and "--kubernetes" in needs)):
            raise LaunchError(f"{option} has an effect only with {needs}; add that, or remove {option}")
    if legacy_keras and (slurm or kubernetes):
        raise LaunchError(
            "--legacy-keras has no effect on a job of Slurm or Kubernetes; "
            "give the program as `python -m rueda.hvd --legacy-keras train.py`"
        )
    given = list(elastic_options(least, most, restarts, timeout, elastic_timeout, discovery_script))
    if given and check:
        raise LaunchError(f"{given[0]}, for an elastic job, has no effect with --check; remove one of them")
    if check and (slurm or kubernetes):
        raise LaunchError("--check has no effect on a job of Slurm or Kubernetes; remove it")
    values, references = requested(export or [])
    if submit or not (slurm or kubernetes):
        referenced(references, os.environ)  # an error now rather than on the first host
    plan = plan_job(
        command, workers=workers, hosts=hosts, hostfile=hostfile, ssh=ssh, module=module, python=python,
        environment={**values, **stall_variables(stall_warning, stall_timeout, stall_dump)}, references=references,
        legacy_keras=legacy_keras, discovery_script=discovery_script or None, elastic=bool(given),
        min_workers=least, max_workers=most, restarts=restarts, timeout=timeout, elastic_timeout=elastic_timeout,
    )  # fmt: skip
    identity = identify(os.environ)
    if identity.size > 1 and identity.launcher in TASK_LAUNCHERS and not (slurm or kubernetes):
        if given:
            raise LaunchError(
                f"{given[0]}, for an elastic job, has no effect on tasks of {identity.launcher}; remove it"
            )
        if check:
            raise LaunchError(f"--check has no effect on tasks of {identity.launcher}; remove it")
        if output is not None:
            raise LaunchError(
                f"--output has no effect on tasks of {identity.launcher}; give its own option, or remove it"
            )
        run_as_task(plan, identity, is_quiet=quiet_ranks)
    num_nodes = None if hosts or hostfile else nodes  # None: the hosts that were named
    if slurm:
        from rueda.world.launch.slurm import batch_script, submit_script

        script = batch_script(plan, nodes=num_nodes, options=sbatch or [])
        typer.echo(submit_script(script) if submit else script, nl=submit)
    elif kubernetes:
        from rueda.world.launch.kubernetes import manifest

        typer.echo(manifest(plan, nodes=num_nodes, image=image), nl=False)
    else:
        from rueda.world.launch.driver import launch
        from rueda.world.launch.output import OutputOptions

        shown = OutputOptions(quiet_ranks=quiet_ranks, folder=output)
        if check:
            from rueda.check.audit.command import check_script

            raise typer.Exit(check_script(plan, updates=0, output=shown))
        raise typer.Exit(launch(plan, output=shown))
