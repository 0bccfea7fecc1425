"""The options of horovodrun, each with its fate here: the parser, the configuration file and the page are made of it.

An option is *honoured*, or it is accepted and its ``note`` is printed: it has no meaning on ``torch.distributed``.
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
        flags: as typed, separated by blanks; the last gives the field its name.
        kind: of the value: int, float, str, or bool for an option without one.
        help: what it does.
        note: why it has no meaning here; empty: it is honoured.
        variable: the ``HOROVOD_*`` variable that carries it to the workers.
        config: its place in a configuration file: ``section.key``.
        no: the flags that set it to False.
    """

    flags: str
    kind: type
    help: str = ""
    note: str = ""
    variable: str = ""
    config: str = ""
    no: str = ""

    @property
    def field(self) -> str:
        """The name of the field."""
        return self.flags.split()[-1].lstrip("-").replace("-", "_")


_TUNING = "the core needs no tuning of this kind"
_ELASTIC = "elastic training is not in Rueda yet: the job keeps its -np workers and ends with the first failure"
_BACKENDS = "torch.distributed's own backends carry the tensors"
_HIERARCHY = "NCCL and Gloo choose the way over the machines by themselves"

OPTIONS = (
    Option("-np --num-proc", int, "how many workers"),
    Option("-H --hosts", str, "hosts and their slots: server1:4,server2:4"),
    Option("-hostfile --hostfile", str, "a host a line: server1 slots=4"),
    Option("--slots-per-host", int, "slots of hosts that name none"),
    Option("-p --ssh-port", int, "the ssh port of all hosts"),
    Option("-i --ssh-identity-file", str, "the private key"),
    Option("--network-interface --network-interfaces", str, "the network cards to use: eth0,eth1"),
    Option("--start-timeout", float, "seconds to wait until all workers have met; also HOROVOD_START_TIMEOUT"),
    Option("--output-filename", str, "a folder for rank.<rank>/stdout and stderr, beside what is shown"),
    Option("-prefix-timestamp --prefix-output-with-timestamp", bool, "the time before each line"),
    Option("--verbose", bool, "say what is started, and where"),
    Option("--config-file", str, "a YAML file of options; those typed win over it"),
    Option("-cb --check-build", bool, "say what is available, and leave"),
    Option("-v --version", bool, "print the version, and leave"),
    Option("--fusion-threshold-mb", int, "small tensors travel together up to so many MB",
           variable="HOROVOD_FUSION_THRESHOLD", config="params.fusion_threshold_mb"),
    Option("--cycle-time-ms", float, "how long submissions are collected while nobody waits for them",
           variable="HOROVOD_CYCLE_TIME", config="params.cycle_time_ms"),
    Option("--cache-capacity", int, "how many names are known by number",
           variable="HOROVOD_CACHE_CAPACITY", config="params.cache_capacity"),
    Option("--timeline-filename", str, "write the timeline there, for chrome://tracing",
           variable="HOROVOD_TIMELINE", config="timeline.filename"),
    Option("--timeline-mark-cycles", bool, "mark the cycles in it", variable="HOROVOD_TIMELINE_MARK_CYCLES",
           config="timeline.mark_cycles", no="--no-timeline-mark-cycles"),
    Option("--no-stall-check", bool, "do not report tensors that wait for some ranks",
           variable="HOROVOD_STALL_CHECK_DISABLE", no="--stall-check"),
    Option("--stall-check-warning-time-seconds", int, "report them after so long",
           variable="HOROVOD_STALL_CHECK_TIME_SECONDS", config="stall_check.warning_time_seconds"),
    Option("--stall-check-shutdown-time-seconds", int, "end the job after so long",
           variable="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", config="stall_check.shutdown_time_seconds"),
    Option("--tcp", bool, "no InfiniBand", variable="NCCL_IB_DISABLE"),
    Option("--gloo", bool, "Gloo and NCCL, as always"),
    Option("--mpi", bool, note=f"{_BACKENDS}; to start by MPI, type `mpirun -np 4 python -m rueda.hvd train.py`"),
    Option("--jsrun", bool, note=f"{_BACKENDS}; start by ssh hosts, Slurm (`rueda run --slurm`) or mpirun"),
    Option("--mpi-args", str, note="no mpirun is started"),
    Option("--binding-args", str, note="no mpirun is started; each worker gets its share of the cores as threads"),
    Option("--mpi-threads-disable", bool, note=_BACKENDS, config="library_options.mpi_threads_disable",
           no="--no-mpi-threads-disable"),
    Option("--num-nccl-streams", int, note="torch.distributed has a stream for each process group",
           config="library_options.num_nccl_streams"),
    Option("--thread-affinity", int, note="the core's thread sleeps unless there is work",
           config="library_options.thread_affinity"),
    Option("--gloo-timeout-seconds", int, note="use --stall-check-shutdown-time-seconds, which names tensor and ranks",
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
    Option("--log-level", str, note="the core is silent but for errors and stalls; see --verbose",
           variable="HOROVOD_LOG_LEVEL", config="logging.level"),
    Option("--no-log-hide-timestamp --log-with-timestamp", bool, note="see --prefix-output-with-timestamp",
           config="logging.with_timestamp", no="--log-without-timestamp --log-hide-timestamp"),
    Option("--min-num-proc --min-np", int, note=_ELASTIC),
    Option("--max-num-proc --max-np", int, note=_ELASTIC),
    Option("--host-discovery-script", str, "a program that prints a host a line",
           note=f"it is asked once; {_ELASTIC}"),
    Option("--elastic-timeout", int, note=_ELASTIC),
    Option("--reset-limit", int, note=_ELASTIC),
    Option("--blacklist-cooldown-range", tuple, note=_ELASTIC),
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command line; an option that was not typed is None."""
    made = argparse.ArgumentParser(
        prog="rueda horovodrun",
        usage="rueda horovodrun -np N [OPTIONS] PROGRAM [ARGUMENTS]",
        description="Start a program on N workers, with the command line of horovodrun.",
        allow_abbrev=False,
    )
    for option in OPTIONS:
        text = (option.help or f"accepted; {option.note}").replace("%", "%%")
        value: dict[str, Any] = {"dest": option.field, "default": None, "help": text}
        if option.kind is bool:
            made.add_argument(*option.flags.split(), action="store_true", **value)
        elif option.kind is tuple:
            made.add_argument(*option.flags.split(), type=int, nargs=2, metavar=("MIN", "MAX"), **value)
        elif option.field == "network_interfaces":
            made.add_argument(*option.flags.split(), action="append", metavar="CARDS", **value)
        else:
            choices = LOG_LEVELS if option.field == "log_level" else None
            made.add_argument(*option.flags.split(), type=option.kind, choices=choices,
                              metavar=option.kind.__name__.upper(), **value)  # fmt: skip
        if option.no:
            made.add_argument(*option.no.split(), dest=option.field, action="store_false", help=argparse.SUPPRESS)
    made.add_argument("command", nargs=argparse.REMAINDER, metavar="PROGRAM", help="what every worker runs")
    return made


def with_config(values: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Add what a configuration file says to what was typed, which wins.

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
    for place, value in _flat(found, path):
        if place == "stall_check.enabled":
            name, value = "no_stall_check", not value
        elif place == "controller" and str(value).lower() in ("gloo", "mpi"):
            name, value = str(value).lower(), True
        elif place in known:
            name, value = known[place].field, _converted(known[place], value, f"{path}: {place}")
        else:
            near = ", ".join(sorted(known))
            raise LaunchError(f"--config-file {path}", expected=f"one of {near}", got=place, do="correct it")
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
    """Give the variables by which the options reach the workers.

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
    """Say of each option that was given and has no meaning here why that is so; each reason once."""
    given = [option for option in OPTIONS if option.note and values.get(option.field) not in (None, False)]
    return [
        f"note: {', '.join(option.flags.split()[-1] for option in given if option.note == note)}: {note}"
        for note in dict.fromkeys(option.note for option in given)
    ]


def table() -> str:
    """Write the options as a table of the page."""
    lines = ["| option | here | |", "|---|---|---|"]
    for option in OPTIONS:
        flags = ", ".join(f"`{flag}`" for flag in f"{option.flags} {option.no}".split())
        fate = "accepted" if option.note else "honoured"
        lines.append(f"| {flags} | {fate} | {option.note or option.help} |")
    return "\n".join(lines) + "\n"
