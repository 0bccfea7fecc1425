"""A rank that is stopped, late or stuck is named by those that wait for it, and the job ends in time."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commandline import environ
from rueda.errors import WorldError
from rueda.world.stall import waits
from rueda.world.stall.flight_recorder import Dump, group_timeout, torch_variables
from rueda.world.stall.limits import StallLimits, read_limits, stall_variables
from rueda.world.stall.peers import Peer
from rueda.world.stall.report import rank_states, report, summary
from rueda.world.stall.stacks import offer_stacks, process_state, silent_process, withdraw_stacks
from rueda.world.stall.waits import TorchCollectives, Wait

KEY = ["torch", "0", 17]
WAIT = Wait(what="all_reduce of float[9]", since=0.0, key=KEY)
PEERS = [Peer(addresses=[], port=1, host="here", pid=os.getpid(), stacks=None) for _ in range(3)]


def answer(**more: Any) -> dict[str, Any]:
    return {"waits": [], "reached": False, "declared": "", "place": "train.py, line 4, in load", "stack": "  s", **more}


WAITS = answer(waits=[["all_reduce", 61.2, KEY]], reached=True)

CASES: dict[str, tuple[dict[int, dict[str, Any]], str, str]] = {
    "late": ({0: WAITS, 1: answer(), 2: WAITS}, "for rank 1", "has not begun it: it is at train.py, line 4, in load"),
    "elsewhere": (
        {0: WAITS, 1: answer(waits=[["barrier", 50.0, ["torch", "0", 16]]]), 2: WAITS},
        "for rank 1",
        "waits in another collective, for 50 s: barrier",
    ),
    "declared": ({0: WAITS, 1: answer(declared="on_main(get)"), 2: WAITS}, "for rank 1", "runs on_main(get), at train"),
    "silent": ({0: WAITS, 1: WAITS}, "for rank 2", "does not answer: its process runs, but holds"),
    "two": ({0: WAITS}, "for ranks 1, 2", "does not answer"),
    "all": ({0: WAITS, 1: WAITS, 2: answer(reached=True)}, "although all ranks have begun it", "has begun it"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_report_names_who_is_missing_and_why(case: str) -> None:
    answers, whom, why = CASES[case]
    states = rank_states(WAIT, answers, PEERS, "here")
    text = report(WAIT, 61.2, 0, states, PEERS, 1800.0)
    first, *rest = text.splitlines()
    assert first.startswith("stall: all_reduce of float[9] has waited 61 s") and whom in first
    assert any(why in line for line in rest) and all(line.startswith("stall: ") for line in rest)
    assert "Python stack of rank 0, which waits:" in text and "the job ends after 1800 s" in text
    assert "\n" not in summary(WAIT, 61.2, states)


def test_a_process_elsewhere_is_not_looked_at() -> None:
    (state,) = [state for state in rank_states(WAIT, {0: WAITS, 1: WAITS}, PEERS, "there") if state.missing]
    assert "nothing comes from here: its process is stopped or has ended, or the network is down" in state.text


def test_torch_does_not_know_the_collectives_of_other_sources() -> None:
    """Their keys have other lengths; the answer to a question about one must not fail."""
    source = TorchCollectives(StallLimits(), lambda text: None)
    unknown = ["torch", "no such group", 17]
    for key in (unknown, ["hvd", 0, 1, "gradient"], ["hvd", "optimizer.1 step 1"]):
        assert source.reached(key) is None  # also of a process group that this process does not have


@pytest.mark.parametrize("jump", [0.0, -3600.0, 3600.0])
@pytest.mark.parametrize(("warning", "timeout"), [(60.0, 4.0), (4.0, 60.0), (0.0, 4.0), (4.0, 0.0)])
def test_a_wait_is_found_in_time_whatever_the_clock_of_the_day_says(
    jump: float, warning: float, timeout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins at second 100 and is first looked at at 100.5; then the clock is set back, or forward."""
    clock = SimpleNamespace(now=100.0, offset=1e9)
    entry = {
        "retired": False, "process_group": ["g"], "is_p2p": False, "collective_seq_id": 1,
        "time_created_ns": (100.0 + clock.offset) * 1e9, "profiling_name": "gloo:all_reduce", "input_dtypes": [],
        "input_sizes": [],
    }  # fmt: skip
    faked = SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.now + clock.offset)
    monkeypatch.setattr(waits, "time", faked)
    monkeypatch.setattr(waits, "_last_begun", lambda: {"g": 1} if clock.now >= 100.0 else {})
    monkeypatch.setattr(waits, "_trace", lambda **which: {"entries": [entry]})
    clock.now = 90.0
    source = TorchCollectives(StallLimits(warning=warning, timeout=timeout), lambda text: None)
    found = []
    for seconds in (95.0, 100.5, 101.5, 102.4, 102.6):
        clock.now = seconds
        found.append([one.since for one in source.waits()])
        clock.offset += jump if seconds == 100.5 else 0.0
    assert found == [[], [], [], [], [pytest.approx(100.0, abs=1e-3)]]


def test_limits_are_checked() -> None:
    assert read_limits({}) == StallLimits(warning=60.0, timeout=1800.0)
    assert read_limits({"RUEDA_STALL_WARNING": "0", "RUEDA_STALL_TIMEOUT": "5"}) == StallLimits(warning=0, timeout=5)
    assert stall_variables(None, 0.5) == {"RUEDA_STALL_TIMEOUT": "0.5"}
    for wrong in ("-1", "nan", "inf", "soon"):
        with pytest.raises(WorldError, match="RUEDA_STALL_TIMEOUT: expected seconds, 0 for never"):
            read_limits({"RUEDA_STALL_TIMEOUT": wrong})
    with pytest.raises(WorldError, match="--stall-warning"):
        stall_variables(-1.0, None)


def test_nccl_has_its_own_limits_behind_those_of_the_watcher() -> None:
    file = "/dumps/trace_rank_"
    table: list[tuple[StallLimits, dict[str, str], dict[str, str]]] = [
        (StallLimits(), {}, {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "1860"}),
        (StallLimits(timeout=5), {"TORCH_NCCL_TRACE_BUFFER_SIZE": "9"}, {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "480"}),
        (StallLimits(timeout=0), {"TORCH_FR_BUFFER_SIZE": "9"}, {"TORCH_NCCL_ENABLE_MONITORING": "0"}),
        (
            StallLimits(), {"RUEDA_STALL_DUMP": "/dumps", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "7"},
            {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_FR_DUMP_TEMP_FILE": file,
             "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": file},
        ),
        (
            StallLimits(timeout=0),
            {"RUEDA_STALL_DUMP": "/dumps", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "mine", "TORCH_FR_BUFFER_SIZE": "1",
             "TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_ENABLE_MONITORING": "1"}, {},
        ),
    ]  # fmt: skip
    for limits, environment, expected in table:
        assert torch_variables(limits, environment) == expected
    for size, seconds, expected_days in (("0", 1800.0, 1800 / 86400), ("0", 0.0, 7), ("2000", 1800.0, 7)):
        found = group_timeout(StallLimits(timeout=seconds), {"TORCH_FR_BUFFER_SIZE": size})
        assert found / timedelta(days=1) == pytest.approx(expected_days)
    assert group_timeout(StallLimits(), {}) == timedelta(days=7)


def test_a_dump_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told: list[str] = []
    dump = Dump(str(tmp_path / "file"), 3, told.append)
    for _ in range(2):
        dump.finish()
    assert len(told) == 1 and "cannot write" in told[0] and "trace_rank_3" in told[0]
    assert Dump(None, 0, told.append).remark == ""
    assert stall_variables(None, None, tmp_path / "new") == {"RUEDA_STALL_DUMP": str(tmp_path / "new")}


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="stacks of other processes are read on Linux only")
def test_the_stack_of_a_process_that_holds_the_interpreter_lock_can_be_had() -> None:
    """A regular expression that takes for ever never releases the lock, so that no thread of the process can answer."""
    code = """
        import re
        from rueda.world.stall.stacks import offer_stacks
        print(offer_stacks(), flush=True)
        def backtrack(): re.match(r"(a+)+$", "a" * 60 + "b")
        backtrack()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True, env=environ()
    ) as process:
        assert process.stdout is not None
        descriptor = int(process.stdout.readline())
        try:
            why, stack = silent_process(process.pid, descriptor)
            while "backtrack" not in stack:  # it has not come so far
                why, stack = silent_process(process.pid, descriptor)
            assert "holds Python's interpreter lock" in why
            process.send_signal(signal.SIGSTOP)
            while process_state(process.pid) != "T":
                time.sleep(0.01)
            assert silent_process(process.pid, descriptor) == (
                "its process is stopped (SIGSTOP or Ctrl-Z), so no stack can be had",
                "",
            )
        finally:
            process.kill()
    assert silent_process(process.pid, descriptor) == ("its process has ended", "")


def test_stacks_are_offered_any_number_of_times() -> None:
    for _ in range(3):
        withdraw_stacks(offer_stacks())


SCRIPT = """
import os, signal, time
import torch
import rueda

world = rueda.init()

def nap():
    time.sleep(8.0)

world.on_main(nap)  # longer than the time limit, but declared
print("rested", flush=True)
tensor = torch.ones(400_000)
def train():
    for number in range(10_000):
        if number == 100 and world.rank == 0:  # between two collectives: within one, rank 2 may be a collective behind
            os.kill(os.getpid(), signal.SIGSTOP)
        world.all_reduce(tensor)
train()
"""

TASK = """
import os, signal
from tinytask import network, tiny_task
from torch import nn

class Stops(nn.Module):
    def __init__(self):
        super().__init__()
        self.network, self.turns = network(), 0
    def forward(self, inputs):
        self.turns += 1
        if self.turns == 5 and os.environ.get("RANK") == "0":
            os.kill(os.getpid(), signal.SIGSTOP)
        return self.network(inputs)

task = tiny_task()
task = type(task)(name="stops", model=Stops, train=task.train, test=task.test, recipe=task.recipe)
"""

Jobs = dict[str, tuple[Path, subprocess.Popen[str]]]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """Start both jobs at once, since most of their time is a limit that must pass."""
    limits = ["--stall-warning", "1", "--stall-timeout", "6"]  # the first collective connects, on busy cores too
    commands = {
        "run": ["run", "-np", "3", *limits, "--stall-dump", "dumps", "FOLDER/train.py"],
        "train": ["train", "FOLDER/task.py", "--workers", "2", "--run", "run", *limits],
    }
    started: Jobs = {}
    for name, words in commands.items():
        folder = tmp_path_factory.mktemp(name)
        words = [word.replace("FOLDER", str(folder)) for word in words]
        (folder / "train.py").write_text(SCRIPT)
        (folder / "task.py").write_text(TASK)
        process = subprocess.Popen(
            [sys.executable, "-m", "rueda", *words], env=environ(), cwd=folder, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started[name] = (folder, process)
    yield started
    for _, process in started.values():
        process.kill()
        process.communicate()


def test_a_stopped_rank_0_is_named_by_the_others_and_the_job_ends(jobs: Jobs) -> None:
    folder, process = jobs["run"]
    script = folder / "train.py"
    out, told = process.communicate(timeout=300)
    assert process.returncode == 124, told
    assert out.count("rested") == 3
    # The nap is reported by the lowest rank that waits, and is not ended.
    assert "for rank 0, since" in told and "runs on_main(nap), at " in told and "in nap" in told
    assert "[1] stall: over: the collective has ended" in told
    # The stopped process is reported once, by rank 1, with its state and the stack of rank 1. On a busy machine other
    # collectives may have waited for a second, too; all these are over.
    told_last = re.split(r"\[\d\] stall: over: the collective has ended", told)[-1]
    assert told.count("its process is stopped (SIGSTOP or Ctrl-Z), so no stack can be had; `kill -CONT") >= 2
    assert told_last.count("[1] stall: Python stack of rank 1, which waits:") == 1
    assert "[2] stall: Python stack" not in told_last
    assert "[1] stall:       world.all_reduce(tensor)" in told_last
    # Each rank has written torch's flight recorder, rank 0 at the nap.
    assert f"[1] stall:   flight recorders: {folder}/dumps/trace_rank_*; torchfrtrace compares them" in told
    dumps = {rank: pickle.loads((folder / f"dumps/trace_rank_{rank}").read_bytes()) for rank in range(3)}
    open_ones = [entry for entry in dumps[1]["entries"] if not entry["retired"]]
    assert open_ones[-1]["input_sizes"] == [[400_000]] and open_ones[-1]["frames"][-1]["filename"] == str(script)
    assert len(dumps[0]["entries"]) < len(dumps[1]["entries"])
    last = told.splitlines()[-1]
    assert last.startswith("stall: all_reduce of float[400000] has waited") and "for rank 0, which does not" in last
    assert told.splitlines()[-2] == "rueda: rank 1 on localhost failed with exit status 124"


def test_a_training_whose_rank_0_is_stopped_ends_with_one_line(jobs: Jobs) -> None:
    """Only rank 0's output is shown there, except for such reports."""
    _, process = jobs["train"]
    _, told = process.communicate(timeout=300)
    assert process.returncode == 124, told
    assert "stall: Python stack of rank 1, which waits:" in told and "in backward" in told
    last = told.splitlines()[-1]
    assert last.startswith("rueda: rank 1 on localhost failed with exit status 124: stall: all_reduce of float")
    assert "for rank 0, which does not answer: its process is stopped" in last and "Traceback" not in told
