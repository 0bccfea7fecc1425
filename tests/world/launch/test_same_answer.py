"""One script under every launcher, and alone: the same answer."""

from __future__ import annotations

import shutil
import sys
from typing import Any

import pytest

SUM = """
import torch, rueda
world = rueda.init()
mine = torch.arange(1000, dtype=torch.float64)[world.rank :: world.size]
total = world.all_reduce((mine**2).sum())
counts = world.all_gather_object(len(mine))
if world.is_main:
    print("total", float(total), "of", sum(counts), flush=True)
"""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable]


@pytest.mark.parametrize("name", ["alone", "rueda run", "torchrun", "mpirun"])
def test_the_same_answer(name: str, launcher: Any) -> None:
    if name == "mpirun" and shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")
    command = {
        "alone": [sys.executable],
        "rueda run": [*launcher.rueda, "-np", "2", "--quiet-ranks"],
        "torchrun": TORCHRUN,
        "mpirun": MPIRUN,
    }[name]
    launch = launcher.start(launcher.script(SUM), command=command)
    status, out, err = launch.end(60)
    assert status == 0, err
    assert out == "total 332833500.0 of 1000\n"
    assert launch.left() == []
