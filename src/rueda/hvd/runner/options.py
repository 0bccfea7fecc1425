"""The options of horovodrun; the parser, the configuration file and the table in the documentation are made from them.

An option is *honoured*, or it is *accepted* without effect because it has no meaning on ``torch.distributed``, and its
``note`` is printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rueda.errors import LaunchError, MissingExtra

LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")


@dataclass(frozen=True)
class Option:
    """One option.

    Args:
        flags: its forms, separated by blanks; the last one gives the field its name.
        kind: int, float or str, the type of its value; bool: no value; list: may be repeated; tuple: two numbers.
        help: what it does.
        note: why it has no effect here; empty if it is honoured.
        variable: the ``HOROVOD_*`` variable that carries it to the workers.
        config: its place in a configuration file: ``section.key``.
        no: the flags that set it to False.
        choices: the allowed values; None: any.
    """

    flags: str
    kind: type
    help: str = ""
    note: str = ""
    variable: str = ""
    config: str = ""
    no: str = ""
    choices: tuple[str, ...] | None = None

    @property
    def field(self) -> str:
        """The name under which the option's value is found among the parsed arguments."""
        return self.flags.split()[-1].lstrip("-").replace("-", "_")


_TUNING = "nothing is tuned; see --cycle-time-ms"
_BACKENDS = "tensors are sent by torch.distributed's backends, not by MPI"
_HIERARCHY = "NCCL and Gloo choose the route between machines themselves"

OPTIONS = (
    Option("-np --num-proc", int, "number of workers"),
    Option("-H --hosts", str, "hosts and their slots: server1:4,server2:4"),
    Option("-hostfile --hostfile", str, "file with one host per line: server1 slots=4"),
    Option("--slots-per-host", int, "slots of hosts that are listed without a number"),
    Option("--min-num-proc --min-np", int, "elastic: go on after a failure with at least so many workers (-np)"),
    Option("--max-num-proc --max-np", int, "elastic: the most workers (all slots)"),
    Option("--host-discovery-script", str, "elastic: a program, run every second, that prints a host per line"),
    Option("--elastic-timeout", int, "elastic: seconds to wait for enough hosts (600)"),
    Option("--reset-limit", int, "elastic: survive so many failures; hosts that come or leave do not count"),
    Option("--blacklist-cooldown-range", tuple, "elastic: least and most seconds without a host that fails repeatedly"),
    Option("-p --ssh-port", int, "ssh port of all hosts"),
    Option("-i --ssh-identity-file", str, "private key for ssh"),
    Option("--network-interface --network-interfaces", list, "network interfaces to use: eth0,eth1"),
    Option("--start-timeout", float, "seconds to wait for all workers to start; also HOROVOD_START_TIMEOUT"),
    Option("--output-filename", str, "folder for rank.N/stdout and rank.N/stderr; the output is shown as well"),
    Option("-prefix-timestamp --prefix-output-with-timestamp", bool, "print the time before each line"),
    Option("--legacy-keras", bool, "run scripts for Keras 2 and tensorflow_addons; Rueda's own option"),
    Option("--verbose", bool, "print what is started on which hosts"),
    Option("--config-file", str, "YAML file of options; options on the command line override it"),
    Option("-cb --check-build", bool, "print the available frameworks and backends, and exit"),
    Option("-v --version", bool, "print the version and exit"),
    Option("--fusion-threshold-mb", int, "largest buffer, in MB, in which small tensors are reduced together",
           variable="HOROVOD_FUSION_THRESHOLD", config="params.fusion_threshold_mb"),
    Option("--cycle-time-ms", float, "milliseconds for which submissions are collected while no rank waits for them",
           variable="HOROVOD_CYCLE_TIME", config="params.cycle_time_ms"),
    Option("--cache-capacity", int, "number of tensor signatures that are sent once, then by number",
           variable="HOROVOD_CACHE_CAPACITY", config="params.cache_capacity"),
    Option("--timeline-filename", str, "write a timeline to this file, for chrome://tracing",
           variable="HOROVOD_TIMELINE", config="timeline.filename"),
    Option("--timeline-mark-cycles", bool, "mark the engine's cycles in the timeline",
           variable="HOROVOD_TIMELINE_MARK_CYCLES", config="timeline.mark_cycles", no="--no-timeline-mark-cycles"),
    Option("--no-stall-check", bool, "do not report tensors that only some ranks have submitted",
           variable="HOROVOD_STALL_CHECK_DISABLE", no="--stall-check"),
    Option("--stall-check-warning-time-seconds", int, "report such tensors after this many seconds",
           variable="HOROVOD_STALL_CHECK_TIME_SECONDS", config="stall_check.warning_time_seconds"),
    Option("--stall-check-shutdown-time-seconds", int, "end the job after this many seconds of such a stall",
           variable="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", config="stall_check.shutdown_time_seconds"),
    Option("--tcp", bool, "do not use InfiniBand", variable="NCCL_IB_DISABLE"),
    Option("--gloo", bool, "use Gloo and NCCL, which is the default"),
    Option("--mpi", bool, note=f"{_BACKENDS}; for mpirun, type `mpirun -np 4 python -m rueda.hvd train.py`"),
    Option("--jsrun", bool, note=f"{_BACKENDS}; use ssh hosts, Slurm (`rueda run --slurm`) or mpirun"),
    Option("--mpi-args", str, note="mpirun is not used"),
    Option("--binding-args", str, note="mpirun is not used; each worker gets its share of the cores as threads"),
    Option("--mpi-threads-disable", bool, note=_BACKENDS, config="library_options.mpi_threads_disable",
           no="--no-mpi-threads-disable"),
    Option("--num-nccl-streams", int, note="torch.distributed uses one stream for each process group",
           config="library_options.num_nccl_streams"),
    Option("--thread-affinity", int, note="the engine's background thread sleeps unless there is work",
           config="library_options.thread_affinity"),
    Option("--gloo-timeout-seconds", int,
           note="use --stall-check-shutdown-time-seconds, which names the tensor and the missing ranks",
           config="library_options.gloo_timeout_seconds"),
    Option("--disable-cache", bool, note="nothing is cached between jobs"),
    Option("--hierarchical-allreduce", bool, note=_HIERARCHY, config="params.hierarchical_allreduce",
           no="--no-hierarchical-allreduce"),
    Option("--hierarchical-allgather", bool, note=_HIERARCHY, config="params.hierarchical_allgather",
           no="--no-hierarchical-allgather"),
    Option("--autotune", bool, note=_TUNING, config="autotune.enabled", no="--no-autotune"),
    Option("--autotune-log-file", str, note=_TUNING, config="autotune.log_file"),
    Option("--autotune-warmup-samples", int, note=_TUNING, config="autotune.warmup_samples"),
    Option("--autotune-steps-per-sample", int, note=_TUNING, config="autotune.steps_per_sample"),
    Option("--autotune-bayes-opt-max-samples", int, note=_TUNING, config="autotune.bayes_opt_max_samples"),
    Option("--autotune-gaussian-process-noise", float, note=_TUNING, config="autotune.gaussian_process_noise"),
    Option("--log-level", str, note="the engine reports only errors and stalls; see --verbose",
           variable="HOROVOD_LOG_LEVEL", config="logging.level", choices=LOG_LEVELS),
    Option("--no-log-hide-timestamp --log-with-timestamp", bool, note="see --prefix-output-with-timestamp",
           config="logging.with_timestamp", no="--log-without-timestamp --log-hide-timestamp"),
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; an option that was not typed is None."""
    made = argparse.ArgumentParser(
        prog="rueda horovodrun",
        usage="rueda horovodrun -np N [OPTIONS] PROGRAM [ARGUMENTS]",
        description="Start a program on N workers, with the command line of horovodrun.",
        allow_abbrev=False,
    )
    ignored = made.add_argument_group("options that are accepted without effect, with a note")
    for option in OPTIONS:
        form: dict[str, Any] = {"type": option.kind, "metavar": "VALUE" if option.kind is str else "N"}
        if option.kind is bool:
            form = {"action": "store_true"}
        elif option.kind is list:
            form = {"action": "append", "metavar": "VALUE"}
        elif option.kind is tuple:
            form = {"type": int, "nargs": 2, "metavar": ("MIN", "MAX")}
        elif option.choices is not None:
            form["choices"] = option.choices
        text = (option.help or option.note).replace("%", "%%")
        group = ignored if option.note else made
        group.add_argument(*option.flags.split(), dest=option.field, default=None, help=text, **form)
        if option.no:
            group.add_argument(*option.no.split(), dest=option.field, action="store_false", help=argparse.SUPPRESS)
    made.add_argument("command", nargs=argparse.REMAINDER, metavar="PROGRAM", help="what every worker runs")
    return made


def with_config(values: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the options of the command line, completed by those of a configuration file.

    Sections and keys are Horovod's: ``params.fusion_threshold_mb``, ``timeline.filename``, ``stall_check.enabled`` ...
    """
    try:
        import yaml  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        raise MissingExtra("pyyaml, for --config-file,", "horovod") from None
    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise LaunchError(f"--config-file {path}: cannot be read ({reason}); give a readable YAML file") from None
    known = {option.config: option for option in OPTIONS if option.config}
    merged = dict(values)
    for key, value in _flat(found, path):
        if key == "stall_check.enabled":
            name, value = "no_stall_check", not value
        elif key == "controller" and str(value).lower() in ("gloo", "mpi"):
            name, value = str(value).lower(), True
        elif key in known:
            name, value = known[key].field, _converted(known[key], value, f"{path}: {key}")
        else:
            keys = ", ".join(sorted(known))
            raise LaunchError(f"--config-file {path}", expected=f"one of {keys}", got=key, do="correct it")
        if merged.get(name) is None:
            merged[name] = value
    return merged


def _flat(found: object, path: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(found, dict):
        raise LaunchError(f"--config-file {path}", expected="sections", got=found, do="write `params:` first")
    for section, content in found.items():
        if isinstance(content, dict):
            yield from ((f"{section}.{key}", value) for key, value in content.items() if value is not None)
        elif content is not None:
            yield str(section), content


def _converted(option: Option, value: Any, where: str) -> Any:
    fits = isinstance(value, (int, float)) if option.kind in (int, float) else isinstance(value, option.kind)
    if not fits or (option.kind is not bool and isinstance(value, bool)):
        raise LaunchError(where, expected=f"a value of type {option.kind.__name__}", got=value, do="correct it")
    return option.kind(value)


def variables(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables that carry the options to the workers.

    >>> variables({"fusion_threshold_mb": 32, "no_stall_check": True, "cycle_time_ms": None})
    {'HOROVOD_FUSION_THRESHOLD': '33554432', 'HOROVOD_STALL_CHECK_DISABLE': '1'}
    """
    found: dict[str, str] = {}
    for option in OPTIONS:
        value = values.get(option.field)
        if value is None or not option.variable:
            continue
        if option.kind in (int, float) and value < 0:
            raise LaunchError(option.flags.split()[-1], expected="at least 0", got=value, do="correct it")
        if option.field == "fusion_threshold_mb":
            value *= 2**20
        found[option.variable] = str(int(value)) if option.kind is bool else str(value)
    return found


def notes(values: Mapping[str, Any]) -> list[str]:
    """Return a line for each reason why options that were given have no effect."""
    given = [option for option in OPTIONS if option.note and values.get(option.field) not in (None, False)]
    return [
        f"note: {', '.join(option.flags.split()[-1] for option in given if option.note == note)}: {note}"
        for note in dict.fromkeys(option.note for option in given)
    ]


def table() -> str:
    """Return the options as a Markdown table for ``docs/horovod.md``."""
    lines = ["| option | here | |", "|---|---|---|"]
    for option in OPTIONS:
        flags = ", ".join(f"`{flag}`" for flag in f"{option.flags} {option.no}".split())
        state = "accepted" if option.note else "honoured"
        lines.append(f"| {flags} | {state} | {option.note or option.help} |")
    return "\n".join(lines) + "\n"
