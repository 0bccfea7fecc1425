"""`rueda run` on one machine, for real. Launches are dear, so one launch carries several checks."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")

TALK = """
import json, os, sys
rank = os.environ["RANK"]
for number in range(500):
    print(rank, number, rank * 200, "|")
names = "WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT OMP_NUM_THREADS PYTHONUNBUFFERED"
facts = {name: os.environ.get(name) for name in [*names.split(), "MALLOC_TRIM_THRESHOLD_", "GIVEN"]}
place = os.path.dirname(os.path.abspath(__file__)) == os.getcwd()
print("facts", json.dumps([sys.argv[1:], facts, sys.stdin.read(), place]))
print("to stderr", file=sys.stderr)
sys.stdout.write("no end of line")
"""
ODD = ["-np", "9", "--help", "a b", "'", '"', "$$ $HOME ${local_rank} $(date) `date`", "ü", "a\nb", "", "*", "--", "-m"]


@linux
def test_lines_ranks_arguments_and_environment(launcher: Any) -> None:
    script = launcher.script(TALK)
    # Files beside the script must not be taken for modules of the launcher.
    launcher.script("raise SystemExit('the wrong module')", "selectors.py")
    one_core = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0))), *launcher.rueda]
    status, out, err = launcher.run("-np", "3", "-x", "GIVEN=a b", "--", script, *ODD, command=one_core)
    assert status == 0, err
    for rank in range(3):
        mine = [line[4:] for line in out.splitlines() if line.startswith(f"[{rank}] ")]
        assert mine[:500] == [f"{rank} {number} {str(rank) * 200} |" for number in range(500)]
        assert mine[501:] == ["no end of line"]
        arguments, facts, stdin, right_place = json.loads(mine[500].removeprefix("facts "))
        assert arguments == ODD
        assert stdin == "" and right_place
        assert facts.pop("MASTER_ADDR") == "127.0.0.1" and int(facts.pop("MASTER_PORT")) > 0
        assert facts.pop("MALLOC_TRIM_THRESHOLD_")
        assert facts == {
            "WORLD_SIZE": "3", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "3", "GROUP_RANK": "0",
            "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "GIVEN": "a b",
        }  # fmt: skip
    assert len(out.splitlines()) == 3 * 502
    # Standard error has the workers' lines and one warning; nothing of torch's.
    first, *rest = err.splitlines()
    assert first == "rueda: warning: 3 workers, but this host has 1 core, which they share"
    assert sorted(rest) == [f"[{rank}] to stderr" for rank in range(3)]


def test_a_module_with_rank_0_alone_and_files(launcher: Any) -> None:
    launcher.script("import os, sys; print('rank', os.environ['RANK'], sys.argv[1:])", "tool.py")
    words = ["-np", "2", "--quiet-ranks", "--output", "logs", "-m", "tool", "-m"]
    status, out, err = launcher.run(*words, PYTHONPATH=os.pathsep.join([".", os.environ.get("PYTHONPATH", "")]))
    assert (status, out) == (0, "rank 0 ['-m']\n"), err
    files = {file.name: file.read_text() for file in (launcher.folder / "logs").iterdir()}
    assert files == {"rank-0.log": "rank 0 ['-m']\n", "rank-1.log": "rank 1 ['-m']\n"}


FAIL = """
import os, signal, subprocess, sys, time
if os.environ["RANK"] == "1":
    time.sleep(0.3)
    print("now", flush=True)
    if sys.argv[1] == "raise":
        raise ValueError("the cause")
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(3)
# Stubborn, with a child, and a grandchild that leaves the session and loses its parent.
signal.signal(signal.SIGTERM, signal.SIG_DFL if sys.argv[1] == "kill" else signal.SIG_IGN)
subprocess.Popen(["sh", "-c", "setsid sleep 300 & sleep 300 & sleep 300"])
print("noise", file=sys.stderr)
time.sleep(300)
"""


@linux
@pytest.mark.parametrize(
    ("how", "expected", "last"),
    [
        ("raise", 1, ["rueda: rank 1 on localhost failed with exit status 1", "ValueError: the cause"]),
        ("kill", 137, ["rueda: rank 1 on localhost was ended by SIGKILL", ""]),
    ],
)
def test_a_failure_ends_all(how: str, expected: int, last: list[str], launcher: Any) -> None:
    launch = launcher.start("-np", "2", launcher.script(FAIL), how)
    launch.wait_for_line("now")
    started = time.monotonic()
    status, _, err = launch.end()
    assert status == expected
    assert time.monotonic() - started < 10  # the promise
    assert launch.left() == []
    told = err[err.index("rueda: rank") :].splitlines()
    assert told[0].startswith(last[0])
    assert told[-1].endswith(last[1]) and (how == "kill" or told[1] == "Traceback (most recent call last):")
    assert not any("torch" in line or "elastic" in line for line in err.splitlines())


PULLED_DOWN = """
import sys, time, torch, rueda
world = rueda.init()
world.all_reduce(torch.ones(1))
if world.rank == 1:
    raise ValueError("the cause")
world.all_reduce(torch.ones(1))
"""


def test_the_cause_is_told_from_those_it_pulled_down(launcher: Any) -> None:
    status, _, err = launcher.run("-np", "2", launcher.script(PULLED_DOWN))
    assert status == 1
    told = err[err.index("rueda: rank") :].splitlines()
    assert told[0] == "rueda: rank 1 on localhost failed with exit status 1", err
    assert told[-1] == "ValueError: the cause"


LEAVES_EARLY = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if os.environ["RANK"] == "1":
    os._exit(0)
time.sleep(0.5)
dist.all_reduce(torch.ones(1))
"""


def test_a_rank_that_leaves_early_is_named_before_its_victim(launcher: Any) -> None:
    status, _, err = launcher.run("-np", "2", launcher.script(LEAVES_EARLY))
    assert status != 0
    told = next(line for line in err.splitlines() if line.startswith("rueda: rank"))
    assert told.startswith("rueda: rank 1 left early with exit status 0; rank 0 on localhost, which still needed it, ")
    assert err.count("Traceback (most recent call last)") == 1  # the victim's own


SAVES = """
import os, signal, sys, time
def save(*_):
    while not os.path.exists("told"):  # its agent could end before anybody has seen that it goes on
        time.sleep(0.02)
    sys.exit(print("saved", flush=True))
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(300)
"""


@linux
def test_a_stopped_agent_is_told_and_still_passes_a_signal_on(launcher: Any) -> None:
    launch = launcher.start("-np", "1", launcher.script(SAVES))
    launch.wait_for_line("ready")
    agent = int(Path(f"/proc/{launch.process.pid}/task/{launch.process.pid}/children").read_text().split()[0])
    os.kill(agent, signal.SIGSTOP)
    told = launch.process.stderr.readline()
    assert told.startswith(f"rueda: the agent of localhost (process {agent}) is stopped: "), told
    launch.process.terminate()
    assert launch.process.stderr.readline() == "rueda: the agent of localhost goes on\n"
    (launcher.folder / "told").touch()
    assert launch.end() == (143, "[0] saved\n", "")


WAIT = """
import os, subprocess, sys, time
subprocess.Popen(["sh", "-c", "setsid sleep 300 & sleep 300 & sleep 300"])
try:
    print("ready", flush=True)
    time.sleep(300)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(7)
"""


@linux
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_signals_leave_nothing_behind(number: signal.Signals, status: int, launcher: Any) -> None:
    launch = launcher.start("-np", "2", launcher.script(WAIT))
    for _ in range(2):
        launch.wait_for_line("ready")
    os.killpg(launch.process.pid, number)
    code, out, err = launch.end()
    assert code == status
    assert launch.left() == []
    assert "Traceback" not in err
    if number == signal.SIGINT:
        assert out.count("interrupted") == 2  # each worker could end in its own way


SAVES_SLOWLY = """
import os, sys, time
try:
    print("ready", flush=True)
    time.sleep(300)
except KeyboardInterrupt:
    if os.environ["RANK"] == "0":
        sys.exit(7)
    time.sleep(1.5)
    print("saved", flush=True)
"""


@linux
def test_a_worker_that_has_ended_does_not_end_one_that_still_saves(launcher: Any) -> None:
    launch = launcher.start("-np", "2", launcher.script(SAVES_SLOWLY))
    for _ in range(2):
        launch.wait_for_line("ready")
    os.killpg(launch.process.pid, signal.SIGINT)
    code, out, _ = launch.end()
    assert code == 130
    assert "saved" in out


@linux
@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_killed_agent_is_noticed(where: str, launcher: Any, pretend_ssh: str) -> None:
    words = ["-np", "2"] if where == "here" else ["-H", "alpha:2", "--ssh", pretend_ssh]
    launch = launcher.start(*words, launcher.script(WAIT.replace("setsid ", "")))
    for _ in range(2):
        launch.wait_for_line("ready")
    children = f"/proc/{launch.process.pid}/task/{launch.process.pid}/children"
    with open(children) as file:
        os.kill(int(file.read().split()[0]), signal.SIGKILL)
    status, _, err = launch.end()
    assert status == 1
    assert f"rueda: the agent on {'localhost' if where == 'here' else 'alpha'} ended unexpectedly" in err
    assert launch.left() == []


def test_a_reader_that_leaves(launcher: Any) -> None:
    script = launcher.script("import itertools\nfor n in itertools.count(): print(n, 'x' * 1000)")
    command = ["sh", "-c", '"$@" | head -n 1', "sh", *launcher.rueda]
    launch = launcher.start("-np", "2", script, command=command)
    status, out, lines = launch.end_quietly()
    assert status == 0 and out.startswith(("[0] 0 x", "[1] 0 x")) and lines == []
    assert launch.left() == []


def test_a_closed_output_is_told_in_a_line(launcher: Any) -> None:
    script = launcher.script("import os; print('a line'); open('done-' + os.environ['RANK'], 'w').close()")
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *launcher.rueda]
    status, out, lines = launcher.start("-np", "2", script, command=command).end_quietly()
    told = "rueda: standard output is closed, so the workers' output is not shown; it can go to --output DIR"
    assert (status, out, lines) == (0, "", [told])
    assert len(list(launcher.folder.glob("done-*"))) == 2


NON_BLOCKING = """
import os, sys
os.set_blocking(1, False)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_a_non_blocking_output_loses_no_line(launcher: Any) -> None:
    script = launcher.script("for n in range(3000): print(n, 'x' * 200)")
    command = [sys.executable, "-c", NON_BLOCKING, *launcher.rueda]
    launch = launcher.start("-np", "1", script, command=command)
    launch.wait_until_output_is_full()
    time.sleep(0.3)
    status, out, err = launch.end()
    assert status == 0, err
    assert out.splitlines() == [f"[0] {n} {'x' * 200}" for n in range(3000)]


SHOW_TASK = """
import json, os
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT GIVEN HOROVOD_RANK".split()
print(json.dumps({name: os.environ.get(name) for name in names}))
"""
TASKS = {"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "n[3-4]",
         "SLURM_TASKS_PER_NODE": "2(x2)"}  # fmt: skip


def test_tasks_of_srun_are_the_workers(launcher: Any) -> None:
    """`srun -n 4 rueda run -np 4 train.py`: each task becomes one worker in place of starting four."""
    script = launcher.script(SHOW_TASK)
    own = {**TASKS, "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}
    status, out, err = launcher.run("-np", "4", "-x", "GIVEN=yes", script, **own)
    assert status == 0, err
    assert json.loads(out) == {
        "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
        "MASTER_ADDR": "n3", "MASTER_PORT": str(20000 + 7 * 17), "GIVEN": "yes", "HOROVOD_RANK": "3",
    }  # fmt: skip
    status, out, err = launcher.run("-np", "2", script, **own)
    assert (status, out) == (2, "")
    assert err.startswith("rueda: -np: expected 4, since Slurm started 4 tasks, which are the workers, got 2;")


def test_mpirun_s_tasks_are_the_workers_too(launcher: Any) -> None:
    own = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    status, out, err = launcher.run("-np", "2", launcher.script(SHOW_TASK), **own)
    assert status == 0, err
    assert set(json.loads(out).values()) == {None}  # rueda.init() reads mpirun's own variables
