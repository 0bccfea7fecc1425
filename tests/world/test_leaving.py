"""A process that leaves early has done what any process does at its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import atexit, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from rueda.world.leaving import leave

def write(word, seconds=0.0):
    time.sleep(seconds)
    with open("written", "a") as file:
        file.write(word)

class Torn:
    def __del__(self):
        write("torn ")

kept = Torn()
atexit.register(write, "handler ")
threading.Thread(target=write, args=("thread ", 0.2)).start()
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
ThreadPoolExecutor(1).submit(int)  # its thread is no daemon and would wait for work for ever
sys.stdout.write("a line without an end")
leave(7)
"""


def test_threads_handlers_and_output_are_waited_for_and_nothing_else(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "a line without an end", "")
    assert (tmp_path / "written").read_text() == "thread handler "


def test_nobody_reads_the_output_any_more(tmp_path: Path) -> None:
    code = "from rueda.world.leaving import leave; print('x'); import os; os.close(1); leave(3)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "")


def test_output_that_the_shell_has_closed() -> None:
    code = "import sys; sys.stdout = sys.stderr = None; from rueda.world.leaving import leave; leave(3)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 3


# A worker of an elastic job that an exception ends; the second has a hook of its own, which must come to its end.
FAILING = """
import atexit, sys
from rueda.world.elastic import reforming

leave = reforming.leave
reforming.leave = lambda status: (print("leaves"), leave(status))
atexit.register(print, "handler")
reforming._tell_of_exceptions()
if "own" in sys.argv:
    before = sys.excepthook
    sys.excepthook = lambda *error: (before(*error), print("own"))
raise ValueError("bad")
"""


@pytest.mark.parametrize(("words", "printed"), [([], "leaves\nhandler\n"), (["own"], "own\nhandler\n")])
def test_a_worker_that_fails_ends_at_once_since_survivors_wait_for_it(words: list[str], printed: str) -> None:
    done = subprocess.run([sys.executable, "-c", FAILING, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, printed)
    assert done.stderr.splitlines()[-1] == "ValueError: bad" and done.stderr.count("Traceback") == 1
