from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import pytest

from rueda.data.background import Background


def test_calls_are_done_in_order_by_one_thread() -> None:
    background, done = Background("test"), []

    def note(number: int) -> int:
        done.append((number, threading.current_thread().name))
        return number

    calls = [background.call(note, number) for number in range(20)]
    assert [call.result() for call in calls] == list(range(20))
    assert done == [(number, "test") for number in range(20)]
    background.stop()


def test_an_error_comes_back_and_the_thread_goes_on() -> None:
    background = Background("test")
    with pytest.raises(ZeroDivisionError):
        background.call(lambda: 1 / 0).result()
    assert background.call(lambda: 5).result() == 5
    background.stop()


def test_what_is_cancelled_is_not_done() -> None:
    background, gate, done = Background("test"), threading.Event(), []
    first = background.call(gate.wait)
    second = background.call(done.append, 1)
    second.cancel()
    gate.set()
    assert first.result()
    background.stop()
    assert not done


def forget(background: Background) -> None:
    del background


@pytest.mark.parametrize("end", [Background.stop, forget])
def test_the_thread_ends_when_stopped_or_forgotten(end: Callable[[Background], None]) -> None:
    before = threading.active_count()
    background = Background("test")
    assert threading.active_count() == before + 1
    end(background)
    del background
    gc.collect()
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before
