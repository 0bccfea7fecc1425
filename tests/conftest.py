"""What holds for all tests, set before torch is loaded: one thread, so that results are the same on every machine; and
no AMX on a machine where it ends the process.
"""

from __future__ import annotations

import os

from rueda.world import instruction_sets

os.environ["OMP_NUM_THREADS"] = "1"
os.environ.update(instruction_sets.limits(os.environ))
