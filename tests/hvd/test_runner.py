"""`horovod.run`: a function on N workers, its results in rank order, its exception with rank and traceback."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import rueda.hvd
from rueda.errors import LaunchError, MissingExtra
from rueda.hvd.common import util
from rueda.hvd.pickled import dumps
from rueda.hvd.runner import WorkerError, run
from rueda.hvd.runner.common.util import env
from rueda.hvd.runner.function_server import FunctionServer, Outcome, exchange
from rueda.hvd.runner.util import threads
from rueda.world.authentication import connect

HERE = Path(__file__).parent


def place() -> tuple[int, int]:
    return int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])


def test_results_in_rank_order_of_a_closure(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cloudpickle")
    base = 10

    def collective(exponent: int, *, scale: int = 1) -> tuple[int, int, float]:
        import horovod.torch as hvd
        import torch

        hvd.init()
        print("hello from", hvd.rank())
        total = hvd.allreduce(torch.tensor(float(base ** hvd.rank())), op=hvd.Sum)
        return hvd.rank(), scale * hvd.size() ** exponent, total.item()

    found = rueda.hvd.run(collective, args=(2,), kwargs={"scale": -1}, np=3)
    assert found == [(rank, -9, 111.0) for rank in range(3)]
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == [f"[{rank}]<stdout>:hello from {rank}" for rank in range(3)]


def test_an_exception_brings_rank_and_traceback(tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle")

    def fail(bad: int) -> str:
        rank = int(os.environ["RANK"])
        if rank == bad:
            raise KeyError("the cause")
        import time

        time.sleep(30)  # as those do that wait for the one that failed: they are stopped
        return "late"

    with pytest.raises(WorkerError, match="rank 1 failed: KeyError: 'the cause'") as caught:
        run(fail, (1,), num_proc=2, output_filename=str(tmp_path / "out"))
    error = caught.value
    assert isinstance(error, RuntimeError) and error.rank == 1
    assert error.traceback.startswith("Traceback (most recent call last):") and "in fail" in error.traceback
    assert "worker.py" not in error.traceback
    assert "KeyError: 'the cause'" in (tmp_path / "out" / "rank.1" / "stderr").read_text()


SCRIPT = """
import sys
sys.modules["cloudpickle"] = None  # as if it were not installed
import contextlib
import os
import rueda.hvd

def where(x):
    return x, int(os.environ["RANK"]), Answer.text

class Answer:
    text = "found in the script"

def quit_early():
    os._exit(7)

if __name__ == "__main__":
    print(rueda.hvd.run(where, args=(1.5,), num_proc=2))
    for wrong in (lambda: 1, quit_early):
        try:
            rueda.hvd.run(wrong, num_proc=1)
        except Exception as error:
            print(type(error).__name__, error)
"""


def test_without_cloudpickle_a_function_of_the_script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, text=True, capture_output=True, timeout=60,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[(1.5, 0, 'found in the script'), (1.5, 1, 'found in the script')]",
        "MissingExtra cloudpickle is needed but not installed: run `pip install 'rueda[horovod]'`",
        "WorkerError rank 0 failed: it ended with exit status 7 before it returned a result",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_np": 3, "np": 2}, "-np: expected at least --min-np, 3, got 2"),
        ({"min_np": 4, "max_num_proc": 5, "np": 3}, "-np: expected a number from --min-np to --max-np"),
        ({"np": 2, "reset_limit": -1}, "--restarts: expected 0 or more, got -1"),
        ({"np": -1}, "expected a whole number from 1, got -1"),
        ({"np": 3, "hosts": "localhost:2"}, "expected at most 2"),
        ({"hosts": "a:1", "hostfile": "h"}, "hosts and hostfile both list the hosts"),
        ({"np": 1, "executable": "no-such-python"}, "no program no-such-python"),
    ],
)
def test_mistakes(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        run(place, **arguments)


def test_the_server_sends_the_call_and_collects_outcomes_but_not_without_the_key(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with FunctionServer(b"x" * 100_000) as server:
        assert exchange(server.environment) == b"x" * 100_000
        for rank in (1, 0):
            exchange(server.environment, Outcome(rank, b"result"))
        port = int(server.environment["RUEDA_RUN_AT"].split()[1])
        assert connect(["127.0.0.1"], port, b"guessed", "function server") is None
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(4 * pickle.dumps(Outcome(2, b"forged")))
            with contextlib.suppress(ConnectionResetError):
                assert len(stranger.recv(99)) == 32 and not stranger.recv(1)  # the challenge, then the end
        assert exchange(server.environment)  # it still serves
        assert [outcome.rank for outcome in server.outcomes] == [1, 0]
    assert "refused 2 connections to the function server without the job's key" in capsys.readouterr().err
    assert not [thread for thread in threading.enumerate() if thread.name == "function server" and _alive(thread)]


def _alive(thread: threading.Thread) -> bool:
    thread.join(2)
    return thread.is_alive()


def test_pickles_name_what_they_can_and_carry_what_they_must(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pickle.loads(dumps({"a": (1, 2.5)})) == {"a": (1, 2.5)}
    assert b"Outcome" in dumps(Outcome(0)) and pickle.loads(dumps(Outcome(0))) == Outcome(0)
    pytest.importorskip("cloudpickle")
    assert pickle.loads(dumps(lambda x: 2 * x))(4) == 8
    with pytest.raises(TypeError, match="lock"):
        dumps(threading.Lock())
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(MissingExtra, match="cloudpickle"):
        dumps(lambda x: 2 * x)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1)),
        ({"HOROVOD_RANK": "2", "HOROVOD_SIZE": "4"}, (2, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, (1, 3)),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, (1, 2)),
        ({"HOROVOD_RANK": "2"}, None),
        ({"HOROVOD_RANK": "two", "HOROVOD_SIZE": "4"}, None),
    ],
)
def test_rank_and_size_before_init(
    variables: dict[str, str], expected: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.startswith(("HOROVOD_", "OMPI_", "PMI_", "SLURM_")) or name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if expected is None:
        with pytest.raises(RuntimeError):
            env.get_env_rank_and_size()
    else:
        assert env.get_env_rank_and_size() == expected


def test_threads() -> None:
    seen: list[int] = []
    threads.in_thread(seen.append, (1,)).join()
    threads.in_thread(lambda: 1 / 0, silent=True).join()
    with pytest.raises(ValueError, match="args"):
        threads.in_thread(seen.append, 1)  # type: ignore[arg-type]
    assert threads.execute_function_multithreaded(
        pow, [[base, 2] for base in range(5)], max_concurrent_executions=2
    ) == {base: base**2 for base in range(5)}
    with pytest.raises(ZeroDivisionError):
        threads.execute_function_multithreaded(divmod, [[1, 0]])
    event, stop = threading.Event(), threading.Event()
    waiting = threads.on_event(event, seen.append, (2,), stop=stop, check_stop_interval_s=0.01)
    never = threads.on_event(threading.Event(), seen.append, (3,), stop=stop, check_stop_interval_s=0.01)
    event.set()
    waiting.join(5)
    stop.set()
    never.join(5)
    assert seen == [1, 2] and not waiting.is_alive() and not never.is_alive()


def test_small_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLD", "before")
    with util.env(OLD="within", NEW="within", LEFT=None):
        assert (os.environ["OLD"], os.environ["NEW"]) == ("within", "within") and "LEFT" not in os.environ
    assert os.environ["OLD"] == "before" and "NEW" not in os.environ
    assert [len(part) for part in util.split_list(list(range(10)), 4)] == [3, 3, 2, 2]
    assert util.is_iterable([]) and not util.is_iterable(1)
    choose = util.get_average_backwards_compatibility_fun(type("Ops", (), {"Average": 0, "Sum": 1}))
    assert [choose(None, None), choose(5, None)] == [0, 5]
    with pytest.warns(DeprecationWarning, match="has been replaced with `op`"):
        assert [choose(None, True), choose(None, False)] == [0, 1]
    with pytest.raises(ValueError, match="both"):
        choose(0, True)
    util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__)
    with pytest.raises(ImportError, match=r"horovod\.mxnet is gone"):
        util.check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", __file__)
    assert (util.mpi_built(), util.gloo_built(), util.ddl_built(), util.ccl_built()) == (False, True, 0, 0)
    assert isinstance(util.nccl_built(), int) and not util.gpu_available("mxnet")
