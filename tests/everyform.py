"""Tests of the parallel forms run a choice of cases; ``make forms`` runs every combination."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import product
from typing import Any

EVERY = bool(os.environ.get("RUEDA_EVERY_FORM"))


def every_or(few: list[Any], *choices: Sequence[Any]) -> list[Any]:
    """Return a choice of cases, or every combination of what is given behind it."""
    return list(product(*choices)) if EVERY else few
