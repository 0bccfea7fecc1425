"""Functions that the tests of jobs run in other processes. Nothing here loads torch."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

from rueda.errors import DataError, MissingExtra
from rueda.jobs import Job, Stopped
from rueda.records import Recipe

NUMPY_BEFORE = "numpy" in sys.modules


@dataclass(frozen=True, kw_only=True)
class Request:
    text: str = ""
    folder: Path = Path()
    sizes: tuple[int, ...] = ()
    recipe: Recipe | None = None
    number: float | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    request: Request
    command: str = ""
    environment: str = ""
    torch: bool = False
    numpy_before: bool = False


@dataclass(frozen=True, kw_only=True)
class Narrow:
    request: int


def job(name: str, answer: type = Answer, **request: object) -> Job[Answer]:
    return Job(function=f"jobfunctions:{name}", request=Request(**request), answer=answer)  # type: ignore[arg-type]


def echo(request: Request) -> Answer:
    print("a line of the job", file=sys.stderr)
    warnings.warn("a warning of the job", RuntimeWarning, stacklevel=2)
    return Answer(
        request=request, command=" ".join(sys.argv), environment=os.environ.get(request.text, ""),
        torch="torch" in sys.modules, numpy_before=NUMPY_BEFORE,
    )  # fmt: skip


def mistake(request: Request) -> Answer:
    raise DataError(f"the disk\nis gone: {request.text}")


class OwnError(DataError):
    """An error that is not in rueda.errors."""


def own_mistake(request: Request) -> Answer:
    raise OwnError("nearest class", 3)


def missing_extra(request: Request) -> Answer:
    raise MissingExtra("tensorboard", "tensorboard")


def bug(request: Request) -> Answer:
    raise ValueError("a bug")


def kill(request: Request) -> Answer:
    os.kill(os.getpid(), int(request.text))
    time.sleep(60)
    return Answer(request=request)


def leave(request: Request) -> Answer:
    sys.exit(int(request.text))


def stopped(request: Request) -> Answer:
    raise Stopped(int(request.text))


def no_answer(request: Request) -> None:
    return None


def wait(request: Request) -> Answer:
    """Say that it runs; at Ctrl-C save, slowly, and leave."""
    try:
        (request.folder / f"pid-{os.getpid()}").touch()  # from here on a signal may come
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(float(request.text or 0))
        (request.folder / f"saved-{os.getpid()}").touch()
        raise
    return Answer(request=request)


def save_once(request: Request) -> Answer:
    """Say that it runs, save at SIGUSR1, and go on to its end."""
    saved: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: saved.append(number))
    (request.folder / f"pid-{os.getpid()}").touch()
    deadline = time.monotonic() + 60
    while not saved and time.monotonic() < deadline:
        time.sleep(0.02)
    (request.folder / f"saved-{len(saved)}").touch()
    return Answer(request=request)


def rank_mistake(request: Request) -> Answer:
    """Fail on one rank while the others wait for it, in a collective or asleep; or on none."""
    if request.text in ("bug", "kill"):  # without torch, whose import costs seconds
        if os.environ["RANK"] == "1":
            if request.text == "bug":
                raise ValueError("a bug on rank 1")
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    import rueda

    world = rueda.init()
    if world.rank == 1 and request.text == "ours":
        raise DataError("rank 1 has no data")
    world.barrier()
    return Answer(request=request, environment=f"{world.rank} of {world.size}")
