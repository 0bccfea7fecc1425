"""One thread that does one thing after another, and always ends.

``concurrent.futures`` has this too, but a Ctrl-C that comes while it starts its thread leaves a process that never
ends. Here the thread looks by itself, whenever it has nothing to do, whether anybody still wants it; and an answer
passes through a ``SimpleQueue``, which no interrupt can leave locked.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

_LOOK_SECONDS = 0.2


class Call:
    """Something to be done in the background; its result can be taken once."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._todo: tuple[Callable[..., Any], tuple[Any, ...]] | None = (function, arguments)
        self._answer: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def result(self) -> Any:
        """Wait for the result, or raise what the function raised."""
        value, error = self._answer.get()
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame, and would hold it for ever
        return value

    def cancel(self) -> None:
        """Do not do it, unless it is being done already."""
        self._todo = None

    def run(self) -> None:
        """Do it: for the thread."""
        todo, self._todo = self._todo, None
        if todo is None:
            return
        answer = self._answer
        try:
            answer.put((todo[0](*todo[1]), None))
        except BaseException as error:
            answer.put((None, error))
        finally:
            del self, answer, todo  # the error's traceback holds this frame: no circle may keep the loader alive


class Background:
    """The thread.

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
        """Have a function called, after those before it."""
        call = Call(function, arguments)
        self._calls.put(call)
        return call

    def stop(self) -> None:
        """End the thread, after what it was asked for."""
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
        del call  # it holds the loader, which must be free to go
