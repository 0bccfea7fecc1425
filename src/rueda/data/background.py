"""A background thread that runs calls one after another, and never keeps the process alive.

With ``concurrent.futures``, a Ctrl-C while the thread starts can leave a process that never exits. Here the idle thread
checks from time to time whether its owner and the main thread are still alive, and results are passed through a
``SimpleQueue``, which an interrupt cannot leave locked.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

_LOOK_SECONDS = 0.2


class Call:
    """A call that runs in the background; its result can be taken once."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._todo: tuple[Callable[..., Any], tuple[Any, ...]] | None = (function, arguments)
        self._answer: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def result(self) -> Any:
        """Wait for the result and return it, or raise the exception that the function raised."""
        value, error = self._answer.get()
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame, which would be a reference cycle
        return value

    def cancel(self) -> None:
        """Skip the call if it has not begun."""
        self._todo = None

    def run(self) -> None:
        """Run the function; called by the thread."""
        todo, self._todo = self._todo, None
        if todo is None:
            return
        answer = self._answer
        try:
            answer.put((todo[0](*todo[1]), None))
        except BaseException as error:
            answer.put((None, error))
        finally:
            del self, answer, todo  # a traceback refers to this frame, which must not keep the loader alive


class Background:
    """A thread that runs calls in order.

    >>> background = Background("example")
    >>> calls = [background.call(pow, 2, power) for power in (3, 4)]
    >>> [call.result() for call in calls]
    [8, 16]
    >>> background.stop()
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(self._calls, weakref.ref(self)), name=name)
        self._thread.start()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Call:
        """Queue a call of ``function``, and return it."""
        call = Call(function, arguments)
        self._calls.put(call)
        return call

    def stop(self) -> None:
        """End the thread after all queued calls."""
        self._calls.put(None)
        self._thread.join()


def _work(calls: SimpleQueue[Call | None], owner: weakref.ref[Background]) -> None:
    while True:
        try:
            call = calls.get(timeout=_LOOK_SECONDS)
        except Empty:
            if owner() is None or not threading.main_thread().is_alive():
                return
            continue
        if call is None:
            return
        call.run()
        del call  # it refers to the loader, which could not be freed while this thread waits
