"""A function in other processes: what comes back, what stops it, what it dies of, and that nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from harness import QUICK_START
from jobfunctions import Answer, Narrow, Request, job
from rueda import jobs
from rueda.cli.stopping import stoppable
from rueda.errors import DataError, JobError, JobTimeout, MissingExtra, PeerError, RuedaError
from rueda.jobs import Stopped
from rueda.jobs.messages import raise_first_error, write_error
from rueda.jobs.stopping import as_stopped, raise_if_stopped, signals_raise_stopped
from rueda.records import Recipe
from rueda.train.interruption import Interruption
from rueda.world import World

TESTS = str(Path(__file__).parents[1])


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let children find the functions, and hear Ctrl-C, which the background of a script ignores."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([TESTS, QUICK_START]))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def wait_until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_request_and_answer_are_the_same_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/rueda", "train", "task"])
    monkeypatch.setenv("SOME_VARIABLE", "its value")
    recipe = Recipe(milestones=(1, 2.5), model={"width": 2, "batch_norm": True}, clip=1.0)
    asked = {"text": "SOME_VARIABLE", "folder": Path("a", "b"), "sizes": (1, 2), "recipe": recipe, "number": None}
    answer = jobs.run(job("echo", **asked))
    assert answer.request == Request(**asked)  # type: ignore[arg-type]
    assert answer.command == "/usr/bin/rueda train task" and answer.environment == "its value"
    assert not answer.torch  # the starter's part of the child loads none
    assert answer.numpy_before  # torch would import it from C++, and ignore a signal that arrives meanwhile


def test_a_job_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    with pytest.raises(JobTimeout, match=r"^jobfunctions:wait was still running after 0\.5 seconds$"):
        jobs.run(job("wait", folder=tmp_path), timeout=0.5)


@pytest.mark.parametrize("show", [True, False])
def test_what_a_job_writes_is_handed_on_if_wanted(show: bool, capsys: pytest.CaptureFixture[str]) -> None:
    jobs.run(job("echo"), show=show)
    assert capsys.readouterr().err == ("a line of the job\nwarning: a warning of the job\n" if show else "")


ERRORS: dict[str, tuple[str, str, type[RuedaError], str, int]] = {
    "ours": ("mistake", "x", DataError, "the disk is gone: x", 2),
    "two spaces": ("mistake", "/data/a  b", DataError, "the disk is gone: /data/a  b", 2),
    "a subclass of ours": ("own_mistake", "", DataError, "('nearest class', 3)", 2),
    "another constructor": ("missing_extra", "", MissingExtra, "tensorboard is needed but not installed: run", 2),
    "any other": ("bug", "", JobError, "ValueError: a bug", 1),
    "killed": ("kill", "9", JobError, "killed by SIGKILL", 137),
    "a status": ("leave", "5", JobError, "status 5", 5),
    "the status of a kill": ("leave", "137", JobError, "status 137", 137),
    "no answer": ("no_answer", "", JobError, "TypeError: a job must return a dataclass, got NoneType", 1),
    "left without one": ("leave", "0", JobError, "ended without an answer; does the task call sys.exit", 1),
    "no such function": ("nothing", "", JobError, "has no attribute 'nothing'", 1),
}


@pytest.mark.parametrize(("name", "text", "kind", "message", "status"), ERRORS.values(), ids=ERRORS)
def test_errors(name: str, text: str, kind: type[RuedaError], message: str, status: int) -> None:
    with pytest.raises(RuedaError) as caught:
        jobs.run(job(name, text=text))
    assert type(caught.value) is kind and message in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.exit_status == status


def test_an_answer_that_does_not_fit() -> None:
    with pytest.raises(JobError, match=r"expected an answer \(Narrow\), got: answer.request: expected int, got"):
        jobs.run(job("echo", answer=Narrow))


def test_a_request_that_does_not_fit() -> None:
    with pytest.raises(JobError, match=r"TypeError: request.sizes\[0\]: expected int, got 'two'"):
        jobs.run(job("echo", sizes=("two",)))


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR2, 75)]
)
@pytest.mark.parametrize("name", ["stopped", "kill"])
def test_a_job_that_a_signal_stopped(name: str, number: int, status: int) -> None:
    with pytest.raises(Stopped) as stop:
        jobs.run(job(name, text=str(int(number))))
    assert stop.value.signal == number and stop.value.exit_status == status


def test_which_statuses_are_stops() -> None:
    for status in (0, 1, 2, 127, 134, 137, -9, -6, 255):
        raise_if_stopped(status)
    for status, number in {130: 2, 143: 15, 129: 1, -2: 2, -15: 15, 75: 12, -12: 12}.items():
        with pytest.raises(Stopped) as stop:
            raise_if_stopped(status)
        assert stop.value.signal == number
    assert as_stopped(KeyboardInterrupt()).exit_status == 130


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signals_raise_stopped():
            os.kill(os.getpid(), signal.SIGINT)
            with pytest.raises(Stopped):
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(1)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_stop_that_a_library_has_caught_is_not_lost() -> None:
    """As torch does while it imports NumPy: the import fails, and something that needs it later."""

    def stop_and_catch() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)

    with pytest.raises(Stopped) as stop, signals_raise_stopped():
        stop_and_catch()
        raise AttributeError("module 'numpy' has no attribute 'iterable'")
    assert stop.value.signal == signal.SIGTERM
    with signals_raise_stopped():
        stop_and_catch()
        with pytest.raises(Stopped), Interruption(World()):
            pass
    with Interruption(World()):  # no longer: the block has ended
        pass


def test_the_users_own_handler_of_sigusr1_stays() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        with signals_raise_stopped():
            os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == [signal.SIGUSR1]


def test_sigusr1_is_passed_on_to_a_job_that_handles_it(tmp_path: Path) -> None:
    sent: list[int] = []

    def ask() -> None:
        if not sent and list(tmp_path.glob("pid-*")):
            sent.append(1)
            os.kill(os.getpid(), signal.SIGUSR1)

    jobs.run_many(
        [1], lambda _: job("save_once", folder=tmp_path), 1, waiting=ask, started=lambda _: None,
        finished=lambda _: None, failed=lambda _, error: pytest.fail(str(error)),
    )  # fmt: skip
    assert len(list(tmp_path.glob("saved-*"))) == 1


def run_many(names: list[str], at_once: int, **more: Any) -> list[str]:
    """Run jobs by the name of their function, and tell what happened."""
    told: list[str] = []
    options: dict[str, Any] = {
        "started": lambda name: told.append(f"started {name}"),
        "finished": lambda name: told.append(f"finished {name}"),
        "failed": lambda name, error: told.append(f"failed {name}: {error}"),
        "waiting": lambda: None,
        **more,
    }
    jobs.run_many(names, job, at_once, **options)
    return told


def test_one_that_fails_does_not_stop_the_others() -> None:
    told = run_many(["echo", "mistake", "bug", "echo"], 1)
    assert told == [
        "started echo", "finished echo", "started mistake", "failed mistake: the disk is gone:", "started bug",
        "failed bug: ValueError: a bug", "started echo", "finished echo",
    ]  # fmt: skip
    assert run_many(["echo", "echo"], 2)[:2] == ["started echo", "started echo"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_all_of_them_save(number: int, tmp_path: Path) -> None:
    def stop() -> None:
        if len(list(tmp_path.glob("pid-*"))) == 2:
            os.kill(os.getpid(), number)

    with pytest.raises(Stopped) as stopped:
        jobs.run_many(
            [1, 2, 3], lambda _: job("wait", folder=tmp_path), 2, waiting=stop, started=lambda _: None,
            finished=lambda _: None, failed=lambda _, error: None,
        )  # fmt: skip
    assert stopped.value.signal == number
    pids = [int(file.name.removeprefix("pid-")) for file in tmp_path.glob("pid-*")]
    assert len(pids) == len(list(tmp_path.glob("saved-*"))) == 2 and not any(map(is_running, pids))


def test_one_that_somebody_stopped_stops_all(tmp_path: Path) -> None:
    with pytest.raises(Stopped) as stopped:
        jobs.run_many(
            ["wait", "stopped"], lambda name: job(name, folder=tmp_path, text="15" if name == "stopped" else "0"), 2,
            waiting=lambda: None, started=lambda _: None, finished=lambda _: None, failed=lambda _, error: None,
        )  # fmt: skip
    assert stopped.value.signal == signal.SIGTERM
    assert not any(is_running(int(file.name.removeprefix("pid-"))) for file in tmp_path.glob("pid-*"))


def test_what_does_not_leave_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUEDA_GRACE", "0.3")

    def stop() -> None:
        if list(tmp_path.glob("pid-*")):
            os.kill(os.getpid(), signal.SIGINT)

    began = time.monotonic()
    with pytest.raises(Stopped):
        jobs.run_many(
            [1], lambda _: job("wait", folder=tmp_path, text="60"), 1, waiting=stop, started=lambda _: None,
            finished=lambda _: None, failed=lambda _, error: None,
        )  # fmt: skip
    assert time.monotonic() - began < 50 and not list(tmp_path.glob("saved-*"))
    killed = "rueda: the job had not ended 0.3 s after SIGINT, so it was killed; give more time with --grace\n"
    assert capsys.readouterr().err == killed
    assert not any(is_running(int(file.name.removeprefix("pid-"))) for file in tmp_path.glob("pid-*"))


PARENT = """
import sys
from jobfunctions import job
from pathlib import Path
from rueda import jobs
try:
    jobs.run(job("wait", folder=Path(sys.argv[1]), text=sys.argv[2]))
except jobs.Stopped as stop:
    sys.exit(stop.exit_status)
"""


def parent(folder: Path, saving: float, ctrl_c: Any = signal.SIG_DFL) -> tuple[subprocess.Popen[bytes], int]:
    words = [sys.executable, "-c", PARENT, str(folder), str(saving)]
    process = subprocess.Popen(words, preexec_fn=lambda: signal.signal(signal.SIGINT, ctrl_c))
    file = wait_until(lambda: next(folder.glob("pid-*"), None))
    return process, int(file.name.removeprefix("pid-"))


def test_a_parent_that_is_killed_takes_its_children_along(tmp_path: Path) -> None:
    process, child = parent(tmp_path, 0)
    process.kill()
    process.wait()
    wait_until(lambda: not is_running(child))


def test_a_second_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    process, child = parent(tmp_path, 60)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)  # a repeat within a second is the same signal
    time.sleep(1.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130 and not is_running(child)


def test_a_signal_to_every_process_of_the_job_lets_it_save(tmp_path: Path) -> None:
    process, child = parent(tmp_path, 1.5)
    for pid in (child, process.pid):
        os.kill(pid, signal.SIGTERM)
    assert process.wait(60) == 143 and len(list(tmp_path.glob("saved-*"))) == 1


def test_a_child_can_be_interrupted_though_its_parent_ignores_ctrl_c(tmp_path: Path) -> None:
    """As in the background of a script: SIGTERM stops the parent, which asks the child by SIGINT."""
    process, child = parent(tmp_path, 0, signal.SIG_IGN)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143 and len(list(tmp_path.glob("saved-*"))) == 1 and not is_running(child)


def test_several_workers_answer_once() -> None:
    assert jobs.run(job("rank_mistake"), workers=2) == Answer(request=Request(), environment="0 of 2")


WORKERS: dict[str, tuple[str, type[RuedaError], str, int]] = {
    "ours": ("ours", DataError, "rank 1 has no data", 2),
    "any other": ("bug", JobError, "rank 1 on localhost failed with exit status 1: ValueError: a bug on rank 1", 1),
    "killed": ("kill", JobError, "rank 1 on localhost was ended by SIGKILL", 137),
}


@pytest.mark.parametrize(("text", "kind", "message", "status"), WORKERS.values(), ids=WORKERS)
def test_a_worker_that_fails_ends_all(
    text: str, kind: type[RuedaError], message: str, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RuedaError) as caught:
        jobs.run(job("rank_mistake", text=text), workers=2)
    assert type(caught.value) is kind and message in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.exit_status == status
    if text == "bug":  # rank 0 speaks alone, but what rank 1 died of is shown
        assert "Traceback" in capfd.readouterr().err


def launches(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """Let the launcher end with a status, after rank 0 has written an error."""

    def launch(plan: Any, **more: Any) -> int:
        write_error(Path(plan.program[-1]), "0", DataError("follows from the signal"))
        return status

    monkeypatch.setattr("rueda.jobs.run_job.launch", launch)


def test_an_error_counts_before_those_that_only_report_it(tmp_path: Path) -> None:
    write_error(tmp_path, "1", PeerError("rank 0 failed while the others waited: DataError: the disk is gone"))
    with pytest.raises(PeerError):  # better than nothing
        raise_first_error(tmp_path)
    write_error(tmp_path, "0", DataError("the disk is gone"))
    with pytest.raises(DataError, match=r"^the disk is gone$"):
        raise_first_error(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGPIPE])
def test_a_signal_counts_before_the_errors_that_follow_from_it(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    launches(monkeypatch, 128 + number)
    with pytest.raises(Stopped) as stop:
        jobs.run(job("echo"), workers=2)
    assert stop.value.exit_status == 128 + number


def test_a_command_is_silent_when_nobody_reads_its_output(capsys: pytest.CaptureFixture[str]) -> None:
    for number, told in ((signal.SIGPIPE, ""), (signal.SIGTERM, "a line\n")):
        with pytest.raises(typer.Exit) as left, stoppable("a line"):
            raise Stopped(number)
        assert left.value.exit_code == 128 + number and capsys.readouterr().err == told


def test_a_process_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(JobError, match="cannot start a process for jobfunctions:echo: No such file") as caught:
        jobs.run(job("echo"))
    assert caught.value.exit_status == 2
