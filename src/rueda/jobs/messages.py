"""What caller and worker write for each other, as JSON files in one temporary folder.

::

    job.json            which function, its request, what the user typed
    answer.json         what the function returned; rank 0 writes it
    error-RANK.json     a RuedaError that the function raised on that rank
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

from rueda import errors
from rueda.errors import JobError, RuedaError
from rueda.records.json_record import read_record

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class Job(Generic[Answer]):
    """A function of this package, what it is asked, and what it answers."""

    function: str
    """``module:name``; it takes one argument, whose annotation is the type of the request"""
    request: Any
    """a dataclass of what JSON can say, of paths, and of other such dataclasses"""
    answer: type[Answer]
    """the dataclass that the function returns"""


def write_job(folder: Path, job: Job[Any], argv: Sequence[str], *, leave_with_parent: bool) -> None:
    """Write what the worker reads.

    Args:
        folder: the temporary folder.
        job: what to do.
        argv: the words of the user's command, for the records that the worker writes.
        leave_with_parent: whether the worker ends when its standard input does.
    """
    about = {"function": job.function, "argv": list(argv), "leave_with_parent": leave_with_parent}
    _write(folder / "job.json", {**about, "request": asdict(job.request)})


def read_job(folder: Path) -> dict[str, Any]:
    """Read what the caller wrote."""
    found: dict[str, Any] = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    return found


def call(function: str, request: dict[str, Any]) -> Any:
    """Import the function, read its request as the type that it declares, and call it."""
    module, _, name = function.partition(":")
    found = getattr(import_module(module), name)
    hints = get_type_hints(found)
    hints.pop("return", None)
    (kind,) = hints.values()
    return found(read_record(kind, request, "request"))


def write_answer(folder: Path, answer: Any) -> None:
    """Write what the function returned."""
    if not is_dataclass(answer) or isinstance(answer, type):
        raise TypeError(f"a job must return a dataclass, got {type(answer).__name__}")
    _write(folder / "answer.json", asdict(answer))


def read_answer(folder: Path, job: Job[Answer]) -> Answer:
    """Read the answer, each value checked against its declared type."""
    try:
        data = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
        return read_record(job.answer, data, "answer")
    except (OSError, ValueError, TypeError) as error:
        raise JobError(f"{job.function}: expected an answer ({job.answer.__name__}), got: {error}") from None


def write_error(folder: Path, rank: str, error: RuedaError) -> None:
    """Write an error by the nearest class of :mod:`rueda.errors`; its message is one line."""
    kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    about = {"kind": kind, "message": " ".join(str(error).strip().splitlines()), "exit_status": error.exit_status}
    _write(folder / f"error-{rank}.json", {**about, "seconds": time.time()})


def raise_first_error(folder: Path) -> None:
    """Raise the error that was written first, if there is one: the others may follow from it."""
    found = [json.loads(file.read_text(encoding="utf-8")) for file in folder.glob("error-*.json")]
    if found:
        first = min(found, key=lambda one: one["seconds"])
        kind = getattr(errors, first["kind"])
        error = kind.__new__(kind, first["message"])  # __init__ of some takes other arguments than the message
        error.exit_status = first["exit_status"]
        raise error


def _write(file: Path, data: dict[str, Any]) -> None:
    part = file.with_suffix(".part")
    part.write_text(json.dumps(data, default=str), encoding="utf-8")  # paths as text
    part.replace(file)
