"""The job of an exercise: runs a learner's function in a process of its own (:mod:`rueda.jobs`).

A process of its own, since code in the making may loop for ever, and must not change the lab's own state.
"""

from __future__ import annotations

import io
import json
import traceback
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TrialRequest:
    """A learner's source, and the arguments with which its function is called."""

    source: str
    function: str
    cases: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, kw_only=True)
class TrialAnswer:
    """What the function returned for each case, or why it did not."""

    results: tuple[Any, ...] = ()
    error: str | None = None
    """one line"""
    printed: str = ""


def run(request: TrialRequest) -> TrialAnswer:
    """Execute a source and call its function on each case; return the results, or the error as one line.

    >>> run(TrialRequest(source="def double(x): return 2 * x", function="double", cases=((1,), (2,)))).results
    (2, 4)
    >>> run(TrialRequest(source="def double(x): return y", function="double", cases=((1,),))).error
    "NameError: name 'y' is not defined (line 1)."
    """
    printed, function = io.StringIO(), request.function
    space: dict[str, Any] = {"__name__": "exercise"}
    try:
        with redirect_stdout(printed):
            exec(compile(request.source, "<exercise>", "exec"), space)
            if not callable(space.get(function)):
                return TrialAnswer(error=f"There is no function `{function}`.", printed=printed.getvalue())
            results = [_plain(space[function](*case)) for case in request.cases]
            results = json.loads(json.dumps(results, default=repr))  # no object of the learner's own leaves the process
    except _Unfinished:
        return TrialAnswer(error="Put your own code in place of the three dots.", printed=printed.getvalue())
    except Exception as error:
        return TrialAnswer(error=_one_line(error), printed=printed.getvalue())
    return TrialAnswer(results=tuple(results), printed=printed.getvalue())


def _one_line(error: Exception) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<exercise>"]
    line = error.lineno if isinstance(error, SyntaxError) else (frames[-1].lineno if frames else None)
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {message}" + (f" (line {line})." if line else ".")


class _Unfinished(Exception):
    """A result holds the three dots of the skeleton."""


def _plain(value: Any) -> Any:
    """Turn arrays and tuples into lists and numbers of numpy and torch into Python's."""
    if value is ...:
        raise _Unfinished
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value
