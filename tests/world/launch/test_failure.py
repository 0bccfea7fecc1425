from __future__ import annotations

import pytest

from rueda.world.launch.failure import Failure, describe, first_of, last_traceback

CHAINED = """warming up
Traceback (most recent call last):
  File "old.py", line 1, in <module>
OldError: handled long ago
going on
Traceback (most recent call last):
  File "train.py", line 3, in <module>
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 5, in <module>
ValueError: bad
"""


def test_the_last_traceback_with_its_causes() -> None:
    assert last_traceback(CHAINED) == CHAINED.rstrip().split("\n")[5:]


def test_without_a_traceback_the_last_lines() -> None:
    assert last_traceback("".join(f"{n}\n" for n in range(100))) == [str(n) for n in range(80, 100)]
    assert last_traceback(" \n") == []


def test_a_long_traceback_is_shortened_in_the_middle() -> None:
    frames = [f"  File 'a.py', line {n}" for n in range(200)]
    lines = last_traceback("\n".join(["Traceback (most recent call last):", *frames, "RecursionError: deep"]))
    assert len(lines) == 60
    assert lines[0].startswith("Traceback") and lines[-1] == "RecursionError: deep" and "  ..." in lines


def failure(rank: int, status: int, ended: float, traceback: float | None = None) -> Failure:
    return Failure(rank=rank, host="h", status=status, ended=ended, traceback=traceback)


@pytest.mark.parametrize(
    ("failures", "rank"),
    [
        ([failure(1, 1, 5.0)], 1),
        ([failure(0, 1, 5.0), failure(1, 1, 4.0)], 1),
        # rank 1's trouble began first, though rank 0, which it pulled down, was gone sooner
        ([failure(0, 1, 5.0, 4.9), failure(1, 1, 5.3, 4.7)], 1),
        # the kernel killed rank 2: the tracebacks of the others tell of it
        ([failure(0, 1, 5.3, 5.001), failure(2, -9, 5.002)], 2),
        # an abort may be a library that lost its peer
        ([failure(0, 1, 5.0, 4.9), failure(2, -6, 5.002)], 0),
        ([failure(3, 1, 5.0), failure(1, 1, 5.0)], 1),
    ],
)
def test_who_was_first(failures: list[Failure], rank: int) -> None:
    assert first_of(failures).rank == rank


@pytest.mark.parametrize(
    ("status", "exit_status", "words"),
    [
        (3, 3, "exit status 3"),
        (-9, 137, "SIGKILL"),
        (-15, 143, "SIGTERM"),
        (-11, 139, "SIGSEGV"),
        (-63, 191, "signal 63"),
    ],
)
def test_exit_statuses(status: int, exit_status: int, words: str) -> None:
    one = failure(2, status, 0.0)
    assert one.exit_status == exit_status
    assert describe(one, "").startswith("rank 2 on h ") and words in describe(one, "")
