"""Run a learner's function in a process of its own: ``python -m rueda.labs.trial`` reads a request and prints results.

A process of its own, since code in the making may loop for ever, and must not change the lab's own state.
"""

from __future__ import annotations

import io
import json
import sys
import traceback
from contextlib import redirect_stdout
from typing import Any


def run(source: str, function: str, cases: list[list[Any]]) -> dict[str, Any]:
    """Execute a source and call its function on each case; return the results, or the error as one line.

    >>> run("def double(x): return 2 * x", "double", [[1], [2]])
    {'results': [2, 4], 'printed': ''}
    >>> run("def double(x): return y", "double", [[1]])
    {'error': "NameError: name 'y' is not defined (line 1).", 'printed': ''}
    """
    printed = io.StringIO()
    space: dict[str, Any] = {"__name__": "exercise"}
    try:
        with redirect_stdout(printed):
            exec(compile(source, "<exercise>", "exec"), space)
            if not callable(space.get(function)):
                return {"error": f"There is no function `{function}`.", "printed": printed.getvalue()}
            results = [_plain(space[function](*case)) for case in cases]
    except _Unfinished:
        return {"error": "Put your own code in place of the three dots.", "printed": printed.getvalue()}
    except Exception as error:
        return {"error": _one_line(error), "printed": printed.getvalue()}
    return {"results": results, "printed": printed.getvalue()}


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


if __name__ == "__main__":
    request = json.load(sys.stdin)
    json.dump(run(**request), sys.stdout, default=repr)
