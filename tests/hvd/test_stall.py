"""A rank that does not come: it is named, and if asked for, all give up."""

from __future__ import annotations

import logging
import os
import time

import pytest
import torch

import rueda.hvd.torch as hvd
from harness import workers
from rueda.hvd.common.exceptions import HorovodInternalError, StallError


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def start(**variables: str) -> Kept:
    hvd.shutdown()
    kept = Kept()
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
def test_a_late_rank_is_named() -> None:
    kept = start(HOROVOD_STALL_CHECK_TIME_SECONDS="0.3")
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("w", weight)])

    def step() -> None:
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()

    step()
    for what in (lambda: hvd.allreduce(torch.ones(2), name="late.one"), step):
        if hvd.rank() == 1:
            time.sleep(1.5)
        what()
    hvd.barrier()
    if hvd.rank() == 0:
        text = "\n".join(kept.texts)
        assert "allreduce 'late.one' was submitted by ranks [0, 2]" in text and "not by ranks [1]" in text
        assert (
            "step 'optimizer.1 order.1 step 1' was submitted by ranks [0, 2]" in text
        )  # the first after the order was known
    hvd.shutdown()
    hvd.init()


@workers(3)
def test_all_give_up_and_start_again() -> None:
    start(HOROVOD_STALL_CHECK_TIME_SECONDS="0.2", HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="0.6")
    if hvd.rank() != 2:
        with pytest.raises(StallError, match=r"'never' was submitted by ranks \[0, 1\].*not by ranks \[2\]"):
            hvd.allreduce(torch.ones(2), name="never")
    else:
        time.sleep(1.5)
    with pytest.raises(StallError, match="'never'"):  # also where it was not submitted, and from now on
        hvd.allreduce(torch.ones(2), name="later")
    hvd.shutdown()
    hvd.init()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 3


@workers(2)
def test_who_shuts_down_is_not_waited_for() -> None:
    start()
    if hvd.rank() == 0:
        with pytest.raises(HorovodInternalError, match="rank 1, which has shut down"):
            hvd.allreduce(torch.ones(2), name="alone")
    hvd.shutdown()
    hvd.init()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2


@workers(2)
def test_the_first_of_its_kind_leaves_while_nobody_waits() -> None:
    """A shape that was never sent is spelled out first; that must not keep it from leaving."""
    hvd.init()
    tensor = torch.ones(7, 11, 13)
    hvd.barrier()
    if hvd.rank() == 1:
        handle = hvd.allreduce_async(tensor, name="first", op=hvd.Sum)
        time.sleep(3.0)
        hvd.synchronize(handle)
    else:
        begun = time.monotonic()
        hvd.allreduce(tensor, name="first", op=hvd.Sum)
        assert time.monotonic() - begun < 2.0  # not as long as the other sleeps
    hvd.barrier()
