"""`rueda horovodrun`: every option of horovodrun is honoured or accepted with a note; lines and files look as there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from commandline import Launches, catch_launches
from rueda.cli.horovodrun import CONTEXT, horovodrun
from rueda.errors import LaunchError, MissingExtra
from rueda.hvd.launching import HorovodrunStyle
from rueda.hvd.runner.options import OPTIONS, variables, with_config
from rueda.world.launch import OutputOptions
from rueda.world.launch.driver import MOST_WORKERS

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command(name="horovodrun", context_settings=CONTEXT)(horovodrun)
app.command(name="other")(lambda: None)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launches:
    """What would have been launched."""
    monkeypatch.delenv("HOROVOD_START_TIMEOUT", raising=False)
    return catch_launches(monkeypatch, 0)


def call(*words: str) -> Any:
    return CliRunner().invoke(app, ["horovodrun", *words])


@pytest.mark.parametrize(
    ("words", "program", "hosts"),
    [
        (["-np", "4", "python", "train.py"], ("python", "train.py"), [("localhost", 4)]),
        (["--num-proc", "2", "train.py", "-np", "3", "--help"], ("train.py", "-np", "3", "--help"), [("localhost", 2)]),
        (["-np", "2", "--", "train.py", "--", "x"], ("train.py", "--", "x"), [("localhost", 2)]),
        (["-np", "3", "-H", "a:2,b:4", "train.py"], ("train.py",), [("a", 2), ("b", 1)]),
        (
            ["-np", "5", "--hosts", "a,b,c:1", "--slots-per-host", "2", "t.py"],
            ("t.py",),
            [("a", 2), ("b", 2), ("c", 1)],
        ),
        (["-H", "a:2,b:1", "train.py"], ("train.py",), [("a", 2), ("b", 1)]),
    ],
)
def test_words(
    words: list[str],
    program: tuple[str, ...],
    hosts: list[tuple[str, int]],
    launched: Launches,
) -> None:
    result = call(*words)
    assert result.exit_code == 0, result.output
    ((plan, output),) = launched
    assert (plan.program, [(host.name, host.slots) for host in plan.hosts]) == (program, hosts)
    assert output == OutputOptions(style=HorovodrunStyle()) and plan.environment == {} and result.stderr == ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--fusion-threshold-mb 32", {"HOROVOD_FUSION_THRESHOLD": "33554432"}),
        ("--cycle-time-ms 3.5", {"HOROVOD_CYCLE_TIME": "3.5"}),
        ("--cache-capacity=7", {"HOROVOD_CACHE_CAPACITY": "7"}),
        ("--timeline-filename t.json", {"HOROVOD_TIMELINE": "t.json"}),
        ("--timeline-mark-cycles", {"HOROVOD_TIMELINE_MARK_CYCLES": "1"}),
        ("--no-timeline-mark-cycles", {"HOROVOD_TIMELINE_MARK_CYCLES": "0"}),
        ("--no-stall-check", {"HOROVOD_STALL_CHECK_DISABLE": "1"}),
        ("--stall-check", {"HOROVOD_STALL_CHECK_DISABLE": "0"}),
        ("--stall-check-warning-time-seconds 5", {"HOROVOD_STALL_CHECK_TIME_SECONDS": "5"}),
        ("--stall-check-shutdown-time-seconds 9", {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "9"}),
        ("--tcp", {"NCCL_IB_DISABLE": "1"}),
        ("--start-timeout 40", {"RUEDA_TIMEOUT": "40.0"}),
        ("--network-interface eth0 --network-interfaces eth1,ib0",
         {"GLOO_SOCKET_IFNAME": "eth0,eth1,ib0", "NCCL_SOCKET_IFNAME": "eth0,eth1,ib0", "HOROVOD_GLOO_IFACE": "eth0"}),
        ("--log-level INFO", {"HOROVOD_LOG_LEVEL": "INFO"}),
    ],
)  # fmt: skip
def test_what_reaches_the_workers(words: str, expected: dict[str, str], launched: Launches) -> None:
    assert call("-np", "2", *words.split(), "train.py").exit_code == 0
    assert launched[0][0].environment == expected


def test_ssh_output_and_time(launched: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_START_TIMEOUT", "77")
    words = "-np 2 -p 2222 -i key --output-filename out --prefix-output-with-timestamp --verbose train.py"
    result = call(*words.split())
    plan, output = launched[0]
    assert plan.ssh == ("ssh", "-p", "2222", "-i", "key")
    assert output == OutputOptions(folder=Path("out"), style=HorovodrunStyle(times=True))
    assert plan.environment == {"RUEDA_TIMEOUT": "77"}
    assert result.stderr.splitlines()[0] == "rueda: train.py on 2 workers: localhost (ranks 0 to 1)"


def typed(option: Any) -> list[str]:
    """Type an option, with a value if it takes one."""
    values = {int: ["3"], float: ["0.5"], str: ["INFO"], tuple: ["1", "2"], bool: []}
    return [option.flags.split()[0], *values[option.kind]]


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.note], ids=lambda option: option.field)
def test_the_rest_is_accepted_with_a_note(option: Any, launched: Launches) -> None:
    result = call("-np", "3", *typed(option), "train.py")
    assert result.exit_code == 0, result.output
    name = option.flags.split()[-1]
    assert result.stderr == f"rueda: note: {name}: {option.note}\n"


@pytest.mark.parametrize(
    ("words", "hosts", "expected"),
    [
        ("-np 2", [("localhost", 2)], None),
        ("-np 2 --min-np 1 --max-np 4", [("localhost", 4)], {"least": 1, "most": 4, "wanted": 2}),
        ("--min-num-proc 1 --max-num-proc 3", [("localhost", 3)], {"least": 1, "most": 3, "wanted": None}),
        ("-np 2 --max-np 4", [("localhost", 4)], {"least": 2, "most": 4, "wanted": 2}),
        ("-np 2 --min-np 1 -H a:4,b", [("a", 4), ("b", 1)], {"least": 1, "most": MOST_WORKERS, "wanted": 2}),
        ("-np 2 --host-discovery-script hosts.sh --slots-per-host 3", [],
         {"discovery": "hosts.sh", "slots": 3, "least": 2, "most": MOST_WORKERS}),
        ("-np 2 --reset-limit 5", [("localhost", 2)], {"restarts": 5}),
        ("-np 2 --elastic-timeout 20", [("localhost", 2)], {"wait": 20}),
        ("-np 2 --blacklist-cooldown-range 10 30", [("localhost", 2)], {"cooldown": (10.0, 30.0)}),
    ],
)  # fmt: skip
def test_elastic_options(
    words: str, hosts: list[tuple[str, int]], expected: dict[str, Any] | None, launched: Launches
) -> None:
    result = call(*words.split(), "--verbose", "train.py")
    assert result.exit_code == 0, result.output
    ((plan, _),) = launched
    assert [(host.name, host.slots) for host in plan.hosts] == hosts
    assert (plan.elastic is None) == (expected is None)
    assert {name: getattr(plan.elastic, name) for name in expected or {}} == (expected or {})
    assert result.stderr.startswith("rueda: train.py on ")


def test_a_configuration_file(tmp_path: Path, launched: Launches) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "controller: gloo\nparams:\n  fusion_threshold_mb: 32\n  cycle_time_ms: 5\n  hierarchical_allreduce: true\n"
        "timeline:\n  filename: t.json\n  mark_cycles: true\nstall_check:\n  enabled: false\n"
        "  warning_time_seconds: 120\nlogging:\n  level: INFO\nautotune:\n  enabled: false\n"
    )
    result = call("-np", "2", "--config-file", str(file), "--cycle-time-ms", "9", "train.py")
    assert result.exit_code == 0, result.output
    assert launched[0][0].environment == {
        "HOROVOD_FUSION_THRESHOLD": "33554432", "HOROVOD_CYCLE_TIME": "9.0", "HOROVOD_TIMELINE": "t.json",
        "HOROVOD_TIMELINE_MARK_CYCLES": "1", "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "120", "HOROVOD_LOG_LEVEL": "INFO",
    }  # fmt: skip
    assert "--hierarchical-allreduce" in result.stderr and "--autotune" not in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("params:\n  fusion: 1", "expected one of .*params.cache_capacity.*, got 'params.fusion'"),
        ("params:\n  cycle_time_ms: soon", "params.cycle_time_ms: expected a value of type float, got 'soon'"),
        ("params:\n  cache_capacity: true", "expected a value of type int, got True"),
        ("controller: carrier pigeon", "got 'controller'"),
        ("- a\n- b", "expected sections"),
        ("a: [", r"cannot be read"),
    ],
)
def test_a_wrong_configuration_file(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(LaunchError, match=message):
        with_config({}, str(tmp_path / "c.yaml"))


def test_without_pyyaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingExtra, match=r"pyyaml.*pip install 'rueda\[horovod\]'"):
        with_config({}, "c.yaml")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train.py", "the number of workers is missing; give it with -np"),
        ("-np 0 train.py", "expected a whole number from 1, got 0"),
        ("-np 2", "the program is missing"),
        ("-np 3 -H a:1,b:1 train.py", "expected at most 2"),
        ("-np 2 -H a:2 --hostfile h train.py", "hosts and hostfile both list the hosts"),
        ("-np 2 --hostfile none train.py", "host file none: cannot be read"),
        ("-np 2 --gloo --mpi train.py", "--gloo and --mpi exclude each other"),
        ("-np 2 --cycle-time-ms -1 train.py", "--cycle-time-ms: expected at least 0, got -1.0"),
        ("-np 2 --config-file none train.py", "--config-file none: cannot be read"),
        ("-np 5 --max-np 4 train.py", "--max-np: expected at least --min-np, 5, got 4"),
        ("-np 2 --blacklist-cooldown-range 9 3 train.py", "--blacklist-cooldown-range: expected two numbers"),
    ],
)
def test_mistakes_are_one_line(words: str, message: str, launched: Launches) -> None:
    error = call(*words.split()).exception
    assert isinstance(error, LaunchError), error
    assert message in str(error) and "\n" not in str(error) and launched == []


@pytest.mark.parametrize("words", ["--no-such-option", "-np two train.py", "-np 2 --log-level LOUD train.py"])
def test_what_the_parser_refuses(words: str, launched: Launches) -> None:
    result = call(*words.split())
    assert result.exit_code == 2 and "rueda horovodrun: error: argument" in result.stderr.replace(
        "unrecognized", "argument"
    )
    assert launched == []


def test_help_version_and_build() -> None:
    text = call("--help").output
    for option in OPTIONS:
        assert option.flags.split()[0] in text
    assert call("-v").output == "0.28.1+rueda\n"
    build = call("--check-build").output
    assert "[X] PyTorch" in build and "[X] Gloo" in build and "[ ] MXNet" in build and build.startswith("Horovod v0.28")
    assert call().exit_code == 2


def test_no_variable_is_invented() -> None:
    assert variables({option.field: None for option in OPTIONS}) == {}


SCRIPT = """
import os, sys, time
print("rank", os.environ["HOROVOD_RANK"], "of", os.environ["HOROVOD_SIZE"], os.environ["HOROVOD_CYCLE_TIME"])
print("careful", file=sys.stderr)
import horovod
sys.exit(3 if sys.argv[1:] == ["fail"] and os.environ["HOROVOD_LOCAL_RANK"] == "1" else 0)
"""


COMMAND = """
import typer
from rueda.cli.horovodrun import CONTEXT, horovodrun
app = typer.Typer()
app.command("horovodrun", context_settings=CONTEXT)(horovodrun)
app.command("other")(lambda: None)
app()
"""


def test_a_real_launch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)

    def launch(*words: str) -> subprocess.CompletedProcess[str]:
        options = ["-np", "3", "--cycle-time-ms", "2", "--output-filename", "out"]
        return subprocess.run(
            [sys.executable, "-c", COMMAND, "horovodrun", *options, sys.executable, "train.py", *words],
            cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True, capture_output=True, timeout=60,
        )  # fmt: skip

    done = launch()
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>:rank {rank} of 3 2.0" for rank in range(3)]
    shown = sorted(line for line in done.stderr.splitlines() if line.startswith("["))
    assert shown == [f"[{rank}]<stderr>:careful" for rank in range(3)]
    for rank in range(3):
        assert (tmp_path / "out" / f"rank.{rank}" / "stdout").read_text() == f"rank {rank} of 3 2.0\n"
        assert (tmp_path / "out" / f"rank.{rank}" / "stderr").read_text() == "careful\n"
    failed = launch("fail")
    assert failed.returncode == 3 and "rueda: rank 1 on localhost failed with exit status 3" in failed.stderr
