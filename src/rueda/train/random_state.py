"""The random states of all ranks, as plain tensors and numbers that a checkpoint can hold.

Rueda's own streams are functions of counters (:mod:`rueda.world.seeds`) and need no saving; a user's data set or model
may draw from Python, numpy or torch all the same.
"""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch


def random_state() -> dict[str, Any]:
    """Read the states of this process."""
    drawn: Any = numpy.random.get_state(legacy=True)
    kind, keys, position, has_gauss, cached = drawn
    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": [version, list(internal), gauss],
        "numpy": [str(kind), torch.from_numpy(keys.astype("int64")), int(position), int(has_gauss), float(cached)],
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    """Set the states of this process."""
    torch.set_rng_state(state["torch"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    numpy.random.set_state((kind, keys.numpy().astype("uint32"), position, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
