"""The program ``horovodrun``: reads its command line and starts the workers with :mod:`rueda.world.launch`.

``rueda horovodrun`` is this program. Scripts that start their jobs from Python import :func:`run_commandline`, or
:func:`_run` with ``_HorovodArgs``, from ``horovod.runner.launch``.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rueda.errors import LaunchError, RuedaError
from rueda.hvd.launching import HorovodrunStyle
from rueda.hvd.runner.launch_plan import elastic_limits, plan_job
from rueda.hvd.runner.options import OPTIONS, notes, parser, variables, with_config
from rueda.world.launch import LaunchPlan, OutputOptions, driver


def run_commandline() -> None:
    """Run ``horovodrun`` with the arguments of this process, and end the process with its exit status."""
    try:
        status = horovodrun(sys.argv[1:])
    except RuedaError as mistake:
        print(f"horovodrun: {mistake}", file=sys.stderr)
        status = 2
    sys.exit(status)


def parse_args() -> argparse.Namespace:
    """Read the arguments of this process; an option that was not typed is None."""
    return parser().parse_args()


class HorovodArgs(SimpleNamespace):
    """The options of a job as attributes: those of the command line, and a function to call instead of a program."""

    def __init__(self) -> None:
        names = {option.field for option in OPTIONS} | {"command", "run_func", "executable", "nics", "slots"}
        names |= {"use_gloo", "use_mpi", "use_jsrun", "cooldown_range", "min_num_proc", "max_num_proc"}
        super().__init__(**dict.fromkeys(names))
        self.num_proc = 1


def _run(args: Any) -> list[Any] | None:
    """Run the job of a ``_HorovodArgs``: its function, whose results are returned, or its program.

    Raises:
        RuntimeError: the program failed.
        LaunchError: the workers cannot be started.
    """
    if args.run_func is not None:
        from rueda.hvd.runner import run

        return run(
            args.run_func, num_proc=args.num_proc, hosts=args.hosts, hostfile=args.hostfile, slots=args.slots,
            start_timeout=args.start_timeout, ssh_port=args.ssh_port, ssh_identity_file=args.ssh_identity_file,
            output_filename=args.output_filename, verbose=args.verbose, executable=args.executable,
            network_interfaces=args.nics, min_np=args.min_num_proc or args.min_np,
            max_np=args.max_num_proc or args.max_np, reset_limit=args.reset_limit, cooldown_range=args.cooldown_range,
        )  # fmt: skip
    values = {option.field: getattr(args, option.field, None) for option in OPTIONS}
    interfaces = [args.nics] if isinstance(args.nics, str) else args.nics
    values |= {"slots_per_host": args.slots, "network_interfaces": interfaces or values["network_interfaces"]}
    for name, other in (
        ("min_np", args.min_num_proc), ("max_np", args.max_num_proc), ("blacklist_cooldown_range", args.cooldown_range)
    ):  # fmt: skip
        values[name] = values[name] if other is None else other
    status = _start(list(args.command or ()), values)
    if status:
        raise RuntimeError(f"the job ended with exit status {status}")
    return None


def horovodrun(words: Sequence[str]) -> int:
    """Run ``horovodrun`` with these arguments and return the exit status."""
    reader = parser()
    if not words:
        reader.print_help()
        return 2
    values = vars(reader.parse_args(words))
    command: list[str] = values.pop("command")
    if values["version"]:
        from rueda.hvd import __version__

        print(__version__)
        return 0
    if values["check_build"]:
        print(_build())
        return 0
    if values["config_file"]:
        values = with_config(values, values["config_file"])
    if values["gloo"] and values["mpi"]:
        raise LaunchError("--gloo and --mpi exclude each other; give one of them, or none")
    return _start(command[1:] if command[:1] == ["--"] else command, values)


def _start(command: list[str], values: dict[str, Any]) -> int:
    if not command:
        raise LaunchError("the program is missing; give it after the options: rueda horovodrun -np 4 python train.py")
    plan = _plan(command, values, variables(values))
    for note in notes(values):
        print(f"rueda: {note}", file=sys.stderr)
    if values["verbose"]:
        for line in _description(plan):
            print(f"rueda: {line}", file=sys.stderr)
    folder = Path(values["output_filename"]) if values["output_filename"] else None
    style = HorovodrunStyle(times=bool(values["prefix_output_with_timestamp"]))
    return driver.launch(plan, output=OutputOptions(folder=folder, style=style))


def _plan(command: list[str], values: dict[str, Any], environment: dict[str, str]) -> LaunchPlan:
    limits = elastic_limits(
        values["num_proc"], values["min_np"], values["max_np"], values["reset_limit"],
        values["blacklist_cooldown_range"], values["elastic_timeout"], values["host_discovery_script"],
        has_hosts=bool(values["hosts"] or values["hostfile"]),
    )  # fmt: skip
    return plan_job(
        command,
        workers=values["num_proc"],
        **limits,
        hosts=values["hosts"],
        hostfile=values["hostfile"],
        slots=values["slots_per_host"],
        ssh_port=values["ssh_port"],
        ssh_identity_file=values["ssh_identity_file"],
        network_interfaces=values["network_interfaces"] or (),
        start_timeout=values["start_timeout"],
        environment=environment,
        legacy_keras=bool(values["legacy_keras"]),
    )


def _description(plan: LaunchPlan) -> list[str]:
    """Return the lines of ``--verbose``: the program and its hosts, then the variables."""
    variables = [f"{name}={value}" for name, value in plan.environment.items()]
    if plan.elastic is not None:
        source = ", ".join(f"{host.name}:{host.slots}" for host in plan.hosts) or f"as {plan.elastic.discovery} lists"
        limits = f"{plan.elastic.least} to {plan.elastic.most} workers"
        return [f"{shlex.join(plan.program)} on {limits}: {source}", *variables]
    hosts = ", ".join(
        f"{host.name} (ranks {plan.first_rank(index)} to {plan.first_rank(index) + host.slots - 1})"
        for index, host in enumerate(plan.hosts)
    )
    return [f"{shlex.join(plan.program)} on {plan.workers} workers: {hosts}", *variables]


def _build() -> str:
    """Return what is available, in horovodrun's form, which scripts parse."""
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
