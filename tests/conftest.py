"""What holds for all tests: one thread, set before torch is loaded, so that results are the same on every machine."""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"
