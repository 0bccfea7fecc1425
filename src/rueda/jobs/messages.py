"""The messages between a caller and its worker processes, as JSON files in a temporary folder.

::

    job.json            which function, its request, what the user typed
    answer.json         what the function returned; rank 0 writes it
    error-RANK.json     a RuedaError that the function raised on that rank
    saved               an empty file: a signal stopped the function, which has saved its state
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

from rueda import errors
from rueda.errors import JobError, PeerError, RuedaError
from rueda.records.json_record import read_record

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class Job(Generic[Answer]):
    """A function of this package, its request, and the type of its answer."""

    function: str
    """``module:name``; it takes one argument, whose annotation is the type of the request"""
    request: Any
    """a dataclass of JSON values, paths, and other such dataclasses"""
    answer: type[Answer]
    """the dataclass that the function returns"""


def write_job(folder: Path, job: Job[Any], argv: Sequence[str], *, leave_with_parent: bool) -> None:
    """Write ``job.json`` for the worker processes.

    Args:
        folder: the temporary folder.
        job: the job to run.
        argv: the user's command line, for the records that the worker writes.
        leave_with_parent: whether the worker exits when its standard input is closed.
    """
    about = {"function": job.function, "argv": list(argv), "leave_with_parent": leave_with_parent}
    _write(folder / "job.json", {**about, "request": asdict(job.request)})


def read_job(folder: Path) -> dict[str, Any]:
    """Read ``job.json``."""
    found: dict[str, Any] = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    return found


def load(function: str) -> Callable[[Any], Any]:
    """Import the function of a job, named as ``module:name``."""
    module, _, name = function.partition(":")
    found: Callable[[Any], Any] = getattr(import_module(module), name)
    return found


def call(function: Callable[[Any], Any], request: dict[str, Any]) -> Any:
    """Convert the request to the declared type of the function's argument, and call the function."""
    hints = get_type_hints(function)
    hints.pop("return", None)
    (kind,) = hints.values()
    return function(read_record(kind, request, "request"))


def write_answer(folder: Path, answer: Any) -> None:
    """Write ``answer.json`` from what the function returned."""
    if not is_dataclass(answer) or isinstance(answer, type):
        raise TypeError(f"a job must return a dataclass, got {type(answer).__name__}")
    _write(folder / "answer.json", asdict(answer))


def read_answer(folder: Path, job: Job[Answer]) -> Answer:
    """Read ``answer.json`` and check each value against its declared type."""
    try:
        data = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
        return read_record(job.answer, data, "answer")
    except FileNotFoundError:
        raise JobError(f"{job.function} ended without an answer; does the task call sys.exit?") from None
    except (OSError, ValueError, TypeError) as error:
        raise JobError(f"{job.function}: expected an answer ({job.answer.__name__}), got: {error}") from None


def write_error(folder: Path, rank: str, error: RuedaError) -> None:
    """Write an error: its message as one line, and its class or the nearest base class in :mod:`rueda.errors`."""
    kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    about = {"kind": kind, "message": " ".join(str(error).strip().splitlines()), "exit_status": error.exit_status}
    _write(folder / f"error-{rank}.json", {**about, "seconds": time.time()})


def write_saved(folder: Path) -> None:
    """Write down that the function has saved its state after a signal."""
    (folder / "saved").touch()


def has_saved(folder: Path) -> bool:
    """Return whether the function has saved its state after a signal."""
    return (folder / "saved").exists()


def raise_first_error(folder: Path) -> None:
    """Raise the error that was written first, if any; those of other ranks may be its consequences.

    A :class:`PeerError`, which only reports that another rank has failed, is raised only if there is no other error.
    """
    found = [json.loads(file.read_text(encoding="utf-8")) for file in folder.glob("error-*.json")]
    if found:
        first = min(found, key=lambda one: (one["kind"] == PeerError.__name__, one["seconds"]))
        kind = getattr(errors, first["kind"])
        error = kind.__new__(kind, first["message"])  # some classes take other arguments in __init__
        error.exit_status = first["exit_status"]
        raise error


def _write(file: Path, data: dict[str, Any]) -> None:
    part = file.with_suffix(".part")
    part.write_text(json.dumps(data, default=str), encoding="utf-8")  # a Path becomes a string
    part.replace(file)
