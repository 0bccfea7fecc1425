"""What tests start imports torch sooner, and lacks nothing that eager or compiled code needs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from harness import QUICK_START

SCRIPT = """
import gc, sys
first, second = sys.argv[1:]
__import__(first)
import torch
print(hasattr(torch._meta_registrations, "meta_mm"), gc.isenabled(), gc.get_freeze_count() > 0)
__import__(second)
print(hasattr(torch._meta_registrations, "meta_mm"), torch.rand(2, generator=torch.Generator().manual_seed(0)).shape)
"""


@pytest.mark.parametrize(
    ("first", "second", "early"),
    [("torch", "torch._functorch.aot_autograd", False), ("keras", "torch", True)],
)
def test_meta_kernels_come_with_what_needs_them(first: str, second: str, early: bool) -> None:
    assert QUICK_START in os.environ["PYTHONPATH"].split(os.pathsep)
    environ = {**os.environ, "PYTHONPATH": QUICK_START, "KERAS_BACKEND": "torch"}
    out = subprocess.run(
        [sys.executable, "-c", SCRIPT, first, second], env=environ, capture_output=True, text=True, check=True
    ).stdout
    assert out == f"{early} True {not early}\nTrue torch.Size([2])\n"
