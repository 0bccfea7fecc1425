"""``rueda horovodrun``: the command line of horovodrun, on the one launcher of :mod:`rueda.world.launch`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rueda.world.launch import LaunchPlan

# Every word is read by horovodrun's own parser, `--help` too.
CONTEXT = {"allow_interspersed_args": False, "ignore_unknown_options": True, "help_option_names": []}
EPILOG = (
    "The options, and what became of each, stand in docs/horovod.md; `rueda horovodrun --help` lists them.\n\n"
    "Example: rueda horovodrun -np 4 -H server1:2,server2:2 python train.py"
)


def horovodrun(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="PROGRAM",
            help="-np N and further options, then the program and its arguments, as horovodrun takes them.",
            show_default=False,
            default_factory=list,
        ),
    ],
) -> None:
    """Start a program on N workers, with the command line of horovodrun; lines are prefixed as there."""
    import sys

    from rueda.errors import LaunchError
    from rueda.hvd.runner.options import notes, parser, variables, with_config

    reader = parser()
    if not words:
        reader.print_help()
        raise typer.Exit(2)
    values = vars(reader.parse_args(words))
    command: list[str] = values.pop("command")
    if values["version"]:
        from rueda.hvd import __version__

        typer.echo(__version__)
        return
    if values["check_build"]:
        typer.echo(_build())
        return
    if values["config_file"]:
        values = with_config(values, values["config_file"])
    if values["gloo"] and values["mpi"]:
        raise LaunchError("--gloo and --mpi are two controllers; give one of them, or none")
    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        raise LaunchError("the program is missing; name it after the options: rueda horovodrun -np 4 python train.py")
    plan = _plan(command, values, variables(values))
    for note in notes(values):
        print(f"rueda: {note}", file=sys.stderr)
    if values["verbose"]:
        for line in _told(plan):
            print(f"rueda: {line}", file=sys.stderr)

    from rueda.hvd.launching import HorovodrunStyle
    from rueda.world.launch.driver import launch
    from rueda.world.launch.output import Show

    folder = Path(values["output_filename"]) if values["output_filename"] else None
    style = HorovodrunStyle(times=bool(values["prefix_output_with_timestamp"]))
    raise typer.Exit(launch(plan, show=Show(folder=folder, style=style)))


def _plan(command: list[str], values: dict[str, Any], environment: dict[str, str]) -> LaunchPlan:
    from rueda.hvd.runner.jobs import plan_job

    workers = next((values[name] for name in ("num_proc", "min_np", "max_np") if values[name] is not None), None)
    return plan_job(
        command,
        workers=workers,
        hosts=values["hosts"],
        hostfile=values["hostfile"],
        discovery_script=values["host_discovery_script"],
        slots=values["slots_per_host"],
        ssh_port=values["ssh_port"],
        ssh_identity_file=values["ssh_identity_file"],
        network_interfaces=[card for cards in values["network_interfaces"] or [] for card in cards.split(",")],
        start_timeout=values["start_timeout"],
        environment=environment,
    )


def _told(plan: LaunchPlan) -> list[str]:
    import shlex

    hosts = ", ".join(
        f"{host.name} (ranks {plan.first_rank(index)} to {plan.first_rank(index) + host.slots - 1})"
        for index, host in enumerate(plan.hosts)
    )
    lines = [f"{shlex.join(plan.program)} on {plan.workers} workers: {hosts}"]
    return [*lines, *(f"{name}={value}" for name, value in plan.environment.items())]


def _build() -> str:
    """Say what is available, in the form that scripts look through."""
    from rueda.hvd import __version__
    from rueda.hvd.common import util

    def row(there: object, name: str) -> str:
        return f"    [{'X' if there else ' '}] {name}"

    lines = [f"Horovod v{__version__}:", "", "Available Frameworks:"]
    frameworks = {"TensorFlow": "tensorflow", "PyTorch": "torch", "MXNet": "mxnet"}
    lines += [row(util.extension_available(module), name) for name, module in frameworks.items()]
    lines += ["", "Available Controllers:", row(util.mpi_built(), "MPI"), row(util.gloo_built(), "Gloo")]
    operations = {"NCCL": util.nccl_built, "DDL": util.ddl_built, "CCL": util.ccl_built, "MPI": util.mpi_built,
                  "Gloo": util.gloo_built}  # fmt: skip
    return "\n".join(
        [*lines, "", "Available Tensor Operations:", *(row(ask(), name) for name, ask in operations.items())]
    )
