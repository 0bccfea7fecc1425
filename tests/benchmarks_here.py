"""The names that a benchmark defines, in the test's own process."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def names_in_benchmark(benchmark: str) -> dict[str, Any]:
    """Run a file of ``benchmarks`` as a module and return what it defines.

    Benchmarks import one another by names that folders of tests have, too: ``from plan import mlp`` is a file there and
    ``from plan.profiles import profile`` a folder here. Whichever was imported first would hide the other.
    """
    names = {file.stem for file in BENCHMARKS.glob("*.py")}
    of_tests = {name: sys.modules.pop(name) for name in names & sys.modules.keys()}
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(BENCHMARKS))
            return runpy.run_path(str(BENCHMARKS / f"{benchmark}.py"))
    finally:
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(of_tests)
