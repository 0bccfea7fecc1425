"""How ranks wait for each other's counters: woken, or late by little if that was missed; and without futex."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from rueda.world.shared_memory import futex, waiting
from rueda.world.shared_memory.futex import Futex, futex_of
from rueda.world.shared_memory.group import SharedGroup
from rueda.world.shared_memory.segment import AWAITS, NUM_COUNTERS, POSTED, Segment, create
from rueda.world.shared_memory.waiting import Counters

LONG = 100.0
"""seconds after which a sleep would end by itself: longer than a test may last"""

known = pytest.mark.skipif(futex_of(memoryview(bytearray(8)).cast("q"), 1.0) is None, reason="no futex on this system")


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Segment]]:
    """The segments of two ranks, both in this process."""
    descriptor = create(2, 1 << 16)
    segments = [Segment(os.dup(descriptor), rank, 2, 1 << 16) for rank in range(2)]
    monkeypatch.setattr(Segment, "is_gone", lambda segment, rank: False)  # a process does not see its own locks
    yield segments
    os.close(descriptor)


def counters_of(segments: list[Segment]) -> list[Counters]:
    return [Counters(segment, lambda: None, math.inf) for segment in segments]


class Waiter(threading.Thread):
    """Rank 1, which waits until rank 0 has posted a chunk."""

    def __init__(self, counters: Counters, value: int) -> None:
        super().__init__(daemon=True)
        self._counters, self._value = counters, value
        self.reached = False
        self.start()

    def run(self) -> None:
        self.reached = self._counters.wait(POSTED, self._value)

    def until_asleep(self, segment: Segment) -> None:
        """Return once rank 1 has said what it sleeps on, and the kernel has put it to sleep."""
        deadline = time.monotonic() + LONG
        while segment.counters[NUM_COUNTERS + AWAITS] != POSTED + 1 or self._state() != "S":
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def _state(self) -> str:
        with open(f"/proc/self/task/{self.native_id}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0]


@known
def test_a_rank_that_sleeps_is_woken_by_the_one_that_it_awaits(
    pair: list[Segment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sleep would last far longer, and so would the first look at what else may have happened."""
    monkeypatch.setattr(waiting, "_FUTEX_SECONDS", LONG)
    first, second = counters_of(pair)
    for number in range(1, 20):
        waiter = Waiter(second, number)
        waiter.until_asleep(pair[0])
        first.set(POSTED, number)
        waiter.join(LONG / 2)
        assert waiter.reached and pair[0].counters[NUM_COUNTERS + AWAITS] == 0


@known
def test_a_missed_wakeup_only_delays(pair: list[Segment]) -> None:
    first, second = counters_of(pair)
    waiter = Waiter(second, 1)
    waiter.until_asleep(pair[0])
    pair[0].counters[POSTED] = 1  # as a rank that has not seen that it is awaited
    waiter.join(LONG / 2)
    assert waiter.reached
    del first


@known
def test_nobody_sleeps_on_a_number_that_has_changed() -> None:
    numbers = memoryview(bytearray(24)).cast("q")
    sleeper = Futex(numbers, LONG)
    numbers[1] = (1 << 40) + 7
    thread = threading.Thread(target=sleeper.sleep, args=(1, 6), daemon=True)
    thread.start()
    thread.join(LONG / 2)
    assert not thread.is_alive()


@pytest.mark.parametrize("machine", ["ppc64le", "x86_64"])
def test_without_futex_ranks_look_again_and_again(
    pair: list[Segment], monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    """On a processor whose call is not known, and where a sandbox refuses it."""
    monkeypatch.setattr(futex.platform, "machine", lambda: machine)
    monkeypatch.setattr(Futex, "wake", lambda sleeper, index: -1)
    groups = [SharedGroup(segment, 1 << 14) for segment in pair]
    assert futex_of(pair[0].counters, 1.0) is None
    tensors = [torch.full((50_000,), float(rank + 1)) for rank in range(2)]  # of many chunks
    threads = [
        threading.Thread(target=reduce, args=(group, tensor)) for group, tensor in zip(groups, tensors, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert all(torch.equal(tensor, torch.full((50_000,), 60.0)) for tensor in tensors)


def reduce(group: SharedGroup, tensor: Tensor) -> None:
    group.all_reduce(tensor)
    group.all_reduce(tensor, divisor=0.1)


def test_looking_without_a_pause_ends_where_it_is_of_no_use_and_comes_back() -> None:
    looking = waiting._Usefulness(possible=True)
    for _ in range(100):
        if looking.is_expected():
            looking.note(was_of_use=False)
    tried = [looking.is_expected() for _ in range(64)]
    assert 1 <= sum(tried) <= 8
    for _ in range(200):
        if looking.is_expected():
            looking.note(was_of_use=True)
    assert all(looking.is_expected() for _ in range(10))
    never = waiting._Usefulness(possible=False)
    assert not any(never.is_expected() for _ in range(100))
