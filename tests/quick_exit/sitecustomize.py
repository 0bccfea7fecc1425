"""Python imports this module at the start of every process that a test starts (see ``tests/conftest.py``).

At its end the interpreter collects garbage among all the objects of torch's modules, twice: 0.35 s of processor time,
a quarter of what a process with torch costs. Exit handlers, threads and output are as ever; objects in reference
cycles are no longer finalised, so a fault that only this last collection would show is not seen by these processes.
"""

from __future__ import annotations

import atexit
import gc

atexit.register(gc.freeze)
