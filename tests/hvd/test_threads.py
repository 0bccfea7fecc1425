"""Several threads of one rank, forked processes, and errors: every thread of every rank gets a result or an error."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import rueda.hvd.torch as hvd
from harness import workers
from rueda.hvd.common.exceptions import HorovodInternalError
from rueda.hvd.core import engine, lifecycle
from rueda.hvd.core.execute import Executor

SECONDS = 60.0


def run_threads(*bodies: Callable[[], Any]) -> list[BaseException | None]:
    """Run functions in threads at once, and return what each has raised."""
    raised: list[BaseException | None] = [None] * len(bodies)

    def call(index: int) -> None:
        try:
            bodies[index]()
        except BaseException as error:
            raised[index] = error

    threads = [threading.Thread(target=call, args=(index,), daemon=True) for index in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert not any(thread.is_alive() for thread in threads), "a thread still waits"
    return raised


@workers(2)
def test_threads_may_submit_in_any_order() -> None:
    hvd.init()
    results: dict[str, float] = {}

    def reduce(name: str, pause: float) -> None:
        time.sleep(pause)
        results[name] = hvd.allreduce(torch.full((3,), hvd.rank() + 1.0), name=name, op=hvd.Sum)[0].item()

    for turn in range(10):  # where threads wait in the order in which they submit, each turn takes a time limit of 15 s
        pauses = (0.0, 0.05) if hvd.rank() == 0 else (0.05, 0.0)
        bodies = [partial(reduce, f"{name}{turn}", pause) for name, pause in zip("ab", pauses, strict=True)]
        assert run_threads(*bodies) == [None, None]
    assert set(results.values()) == {3.0} and len(results) == 20


@workers(2)
def test_six_threads_reduce_at_once() -> None:
    hvd.init()

    def reduce(thread: int) -> None:
        for turn in range(150):
            length = 2000 if turn % 10 == 0 else 3  # some with the negotiation, some over a process group
            found = hvd.allreduce(torch.full((length,), float(turn)), name=f"{thread}.{turn}", op=hvd.Sum)
            assert found.unique().tolist() == [2.0 * turn]

    begun = time.monotonic()
    assert run_threads(*(partial(reduce, thread) for thread in range(6))) == [None] * 6
    assert time.monotonic() - begun < SECONDS / 2  # no thread sleeps through the end of its collective
    hvd.barrier()


@workers(2)
def test_one_name_in_collectives_of_different_kinds() -> None:
    hvd.init()
    mine = torch.full((2,), hvd.rank() + 1.0)
    submit = [
        lambda: hvd.allreduce_async(mine, name="same", op=hvd.Sum),
        lambda: hvd.broadcast_async(mine, 1, name="same"),
        lambda: hvd.allgather_async(mine, name="same"),
    ]
    order = (0, 1, 2) if hvd.rank() == 0 else (2, 0, 1)
    handles = {index: submit[index]() for index in order}
    with pytest.raises(ValueError, match="'again': expected a name that is not in flight"):
        for _ in range(2):
            hvd.allgather_async(torch.ones(2000), name="again")
    found = [hvd.synchronize(handles[index]).tolist() for index in range(3)]
    assert found == [[3.0, 3.0], [2.0, 2.0], [1.0, 1.0, 2.0, 2.0]]
    hvd.shutdown()
    hvd.init()


@workers(2)
def test_shutdown_from_another_thread_ends_a_transfer_that_is_stuck() -> None:
    hvd.shutdown()
    hvd.init()
    original, patience = Executor._reduce_in_group, engine.LEAVE_SECONDS
    engine.LEAVE_SECONDS = 0.5  # three times this long is waited for the stuck thread
    if hvd.rank() == 1:
        stuck = threading.Event()

        def late(*arguments: Any) -> None:
            stuck.wait(SECONDS)
            original(*arguments)

        Executor._reduce_in_group = late  # type: ignore[method-assign]
        handle = hvd.allreduce_async(torch.ones(100_000), name="stuck")
        time.sleep(1.5)
        begun = time.monotonic()
        hvd.shutdown()  # while this rank's own background thread does not come back
        assert time.monotonic() - begun < 30
        Executor._reduce_in_group = original  # type: ignore[method-assign]
        stuck.set()
        with pytest.raises(HorovodInternalError):
            hvd.synchronize(handle)
    else:
        threading.Timer(1.0, hvd.shutdown).start()
        begun = time.monotonic()
        with pytest.raises(HorovodInternalError, match="shut down"):
            hvd.allreduce(torch.ones(100_000), name="stuck")
        assert time.monotonic() - begun < 30
        while hvd.is_initialized():
            time.sleep(0.05)
    engine.LEAVE_SECONDS = patience
    hvd.init()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2


@workers(2)
def test_a_forked_process_does_not_end_its_parent() -> None:
    hvd.init()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert hvd.rank() in (0, 1) and hvd.size() == 2  # as a worker of a data loader may ask
            with pytest.raises(HorovodInternalError, match="forked from rank"):
                hvd.allreduce(torch.ones(1), name="child")
            import atexit

            atexit._run_exitfuncs()  # what sys.exit() does
            hvd.shutdown()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    hvd.barrier()
    time.sleep(0.2)
    assert hvd.allreduce(torch.ones(1), name="parent", op=hvd.Sum).item() == 2
    assert sys.modules["rueda.world"].current().all_reduce(torch.ones(1)).item() == 2


@workers(3)
def test_an_error_in_the_background_thread_of_one_rank_fails_on_all() -> None:
    hvd.shutdown()
    hvd.init()
    engine = lifecycle.engine()

    def broken() -> None:
        raise KeyError("a defect of the background thread")

    hvd.barrier()
    if hvd.rank() == 2:
        engine._channels.wait_until_readable = broken  # type: ignore[method-assign]
        engine._channels.wake()
        assert engine._thread is not None
        engine._thread.join(SECONDS)
    with pytest.raises(
        HorovodInternalError, match="rank 2: the background thread: 'a defect of the background thread'"
    ):
        hvd.allreduce(torch.ones(2), name="after the defect")
        time.sleep(SECONDS)
    hvd.shutdown()
    hvd.init()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 3


@workers(3)
def test_a_collective_that_fails_on_one_rank_fails_on_all() -> None:
    hvd.shutdown()
    hvd.init()
    if hvd.rank() == 1:

        def broken(*_: Any) -> None:
            raise MemoryError("no memory for the buffer")

        lifecycle.engine()._negotiation._executor._reduce_in_group = broken  # type: ignore[method-assign]
    begun = time.monotonic()
    with pytest.raises(HorovodInternalError, match=r"allreduce \['large'\]: no memory for the buffer"):
        hvd.allreduce(torch.ones(100_000), name="large")
    assert time.monotonic() - begun < 30
    hvd.shutdown()
    hvd.init()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 3
