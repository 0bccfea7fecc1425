"""The real data sets, for tests that need them: ``RUEDA_DATA``, or ``../shared/data`` beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def real_data() -> Path:
    """Give the folder with the real data sets, or skip the test and say why."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    for folder in (os.environ.get("RUEDA_DATA"), beside):
        if folder and Path(folder).is_dir():
            return Path(folder)
    pytest.skip("needs the real data sets: set RUEDA_DATA to their folder")
