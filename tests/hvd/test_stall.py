"""A late rank is named in a warning; after the shutdown time all ranks fail."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import rueda.hvd.torch as hvd
from harness import workers
from rueda.hvd.common.exceptions import HorovodInternalError, StallError
from rueda.hvd.core import lifecycle
from rueda.world import current
from rueda.world.stall import watcher
from rueda.world.stall.limits import StallLimits


class Kept(logging.Handler):
    """Keeps warnings, and makes a file for a text in one of them; they are repeated for as long as a rank waits."""

    def __init__(self, files: dict[str, Path]) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._files = files

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        for text, file in self._files.items():
            if text in record.getMessage():
                file.touch()


def wait_for(*files: Path) -> None:
    """Be late until the other ranks have made these files: no sleep is long enough on every machine."""
    deadline = time.monotonic() + 60
    while not all(file.exists() for file in files):
        assert time.monotonic() < deadline, files
        time.sleep(0.02)


def start(files: dict[str, Path] | None = None, **variables: str) -> Kept:
    hvd.shutdown()
    kept = Kept(files or {})
    logger = logging.getLogger("rueda.hvd")
    logger.addHandler(kept)
    logger.propagate = False
    os.environ.update(variables)
    try:
        hvd.init()
    finally:
        for name in variables:
            del os.environ[name]
    return kept


@workers(3)
def test_a_late_rank_is_named(tmp_path: Path) -> None:
    later = "optimizer.1 order.1 step 1"  # the first after the order was known
    kinds = {"late.one": "allreduce", later: "step"}
    told = {name: f"{kind} '{name}' was submitted by ranks [0, 2]" for name, kind in kinds.items()}
    kept = start({text: tmp_path / name for name, text in told.items()}, HOROVOD_STALL_CHECK_TIME_SECONDS="0.3")
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("w", weight)])

    def step() -> None:
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()

    step()
    for name, what in (("late.one", lambda: hvd.allreduce(torch.ones(2), name="late.one")), (later, step)):
        if hvd.rank() == 1:
            wait_for(tmp_path / name)
        what()
    hvd.barrier()
    if hvd.rank() == 0:
        for text in told.values():
            assert any(text in line and "not by ranks [1]" in line for line in kept.texts), kept.texts
    hvd.shutdown()
    hvd.init()


@workers(3)
def test_all_ranks_fail_and_can_start_again(tmp_path: Path) -> None:
    start(HOROVOD_STALL_CHECK_TIME_SECONDS="0.5", HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="2")
    if hvd.rank() != 2:
        with pytest.raises(StallError, match=r"'never' was submitted by ranks \[0, 1\].*not by ranks \[2\]"):
            hvd.allreduce(torch.ones(2), name="never")
        (tmp_path / str(hvd.rank())).touch()
    else:
        wait_for(tmp_path / "0", tmp_path / "1")
    with pytest.raises(StallError, match="'never'"):  # also where it was not submitted, and from now on
        hvd.allreduce(torch.ones(2), name="later")
    hvd.shutdown()
    hvd.init()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 3


@workers(2)
def test_a_collective_fails_when_another_rank_shuts_down() -> None:
    start()
    if hvd.rank() == 0:
        with pytest.raises(HorovodInternalError, match="rank 1, which has shut down"):
            hvd.allreduce(torch.ones(2), name="alone")
    hvd.shutdown()
    hvd.init()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2


@workers(2)
def test_a_new_signature_is_sent_while_no_thread_waits(tmp_path: Path) -> None:
    """A shape that was never sent is spelled out first; that must not keep it from leaving."""
    hvd.init()
    tensor, received = torch.ones(7, 11, 13), tmp_path / "received"
    hvd.barrier()
    if hvd.rank() == 1:
        handle = hvd.allreduce_async(tensor, name="first", op=hvd.Sum)
        wait_for(received)  # the other has its result, though no thread waits here
        hvd.synchronize(handle)
    else:
        hvd.allreduce(tensor, name="first", op=hvd.Sum)
        received.touch()
    hvd.barrier()


def pids() -> list[int]:
    return current().all_gather_object(os.getpid())


@workers(3)
def test_a_stopped_rank_0_ends_the_collectives_of_the_others(tmp_path: Path) -> None:
    """Rank 0 is the one that would have reported: the watchers of the others do."""
    first, *_ = pids()
    start(HOROVOD_STALL_CHECK_TIME_SECONDS="0.5", HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="2")
    hvd.barrier()
    if hvd.rank() == 0:
        os.kill(first, signal.SIGSTOP)
        with pytest.raises(StallError, match="'never'"):  # the others' error has arrived meanwhile
            hvd.allreduce(torch.ones(2), name="late")
            hvd.allreduce(torch.ones(2), name="later")
    else:
        try:
            expected = f"'never' has waited .* for rank 0, which does not answer: its process is stopped .* {first}`"
            with pytest.raises(StallError, match=expected):
                hvd.allreduce(torch.ones(2), name="never")
        finally:
            (tmp_path / str(hvd.rank())).touch()
            if hvd.rank() == 1:
                try:
                    wait_for(tmp_path / "2")  # which must find it stopped, too
                finally:
                    os.kill(first, signal.SIGCONT)
    hvd.shutdown()
    hvd.init()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 3


def limit_transfers(limits: StallLimits) -> None:
    """Watch with these limits from now on: on a busy machine, what goes before may take longer."""
    stalls = lifecycle.engine()._stalls
    watcher.unwatch(stalls)
    stalls.limits = limits
    watcher.watch(stalls)


def check_that_a_stop_ends_the_collective(victim: int, *, connected: bool) -> None:
    """Stop a rank in the midst of a large transfer, or before the ranks connect for it, until the other has an error.

    Rank 0 serves the store by which they connect.
    """
    process = pids()[victim]
    if connected:
        start()
    else:
        start(HOROVOD_STALL_CHECK_TIME_SECONDS="0.3", HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="3")
    tensor = torch.ones(8_000_000)
    if connected:
        assert hvd.allreduce(tensor, op=hvd.Sum, name="large")[0] == 2
        limit_transfers(StallLimits(warning=0.3, timeout=1.0))
    if hvd.rank() == victim:
        groups = lifecycle.engine().groups
        where: Any = groups.get("0", (0, 1), "cpu")._group if connected else groups  # the group in shared memory
        name = "_begin" if connected else "_create"
        original = getattr(where, name)

        def stop(*arguments: Any, **options: Any) -> Any:
            transfer = original(*arguments, **options) if connected else None
            os.kill(process, signal.SIGSTOP)
            return transfer or original(*arguments, **options)

        setattr(where, name, stop)
        with pytest.raises(StallError, match="'large'"):  # the other's error has arrived meanwhile
            hvd.allreduce(tensor, name="large")
            hvd.allreduce(tensor, name="later")
    else:
        why = "which does not answer: its process is stopped"
        try:
            with pytest.raises(StallError, match=f"'large' has waited .* for rank {victim}, {why} .* {process}`"):
                hvd.allreduce(tensor, name="large")
        finally:
            os.kill(process, signal.SIGCONT)
    hvd.shutdown()
    hvd.init()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2


@workers(2)
def test_a_rank_that_is_stopped_in_a_large_transfer_ends_it_for_the_other() -> None:
    check_that_a_stop_ends_the_collective(0, connected=True)
    check_that_a_stop_ends_the_collective(1, connected=True)
    check_that_a_stop_ends_the_collective(0, connected=False)
