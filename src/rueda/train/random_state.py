"""The states of the random number generators, as plain tensors and numbers that a checkpoint can hold.

Rueda's own random numbers are computed from the seed and counters such as the step (:mod:`rueda.world.seeds`), so they
need no saved state, but a user's data set or model may draw from Python's, NumPy's or torch's generators.
"""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch

from rueda.world.seeds import has_accelerator

GeneratorStates = dict[str, torch.Tensor]
"""states of torch's generators by name: ``torch`` is the CPU's, the others are named by their kind of device"""
_ACCELERATORS = ("cuda", "xpu", "mps")


def random_state() -> dict[str, Any]:
    """Return the generator states of this process."""
    drawn: Any = numpy.random.get_state(legacy=True)
    kind, keys, position, has_gauss, cached = drawn
    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": [version, list(internal), gauss],
        "numpy": [str(kind), torch.from_numpy(keys.astype("int64")), int(position), int(has_gauss), float(cached)],
    }
    return {**state, **torch_states(torch.accelerator.current_accelerator() if has_accelerator() else None)}


def restore_random_state(state: dict[str, Any]) -> None:
    """Restore the generator states of this process."""
    restore_torch_states({name: state[name] for name in ("torch", *_ACCELERATORS) if name in state})
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    numpy.random.set_state((kind, keys.numpy().astype("uint32"), position, has_gauss, cached))


def torch_states(device: torch.device | None) -> GeneratorStates:
    """Return the states of torch's generators: the CPU's, and that of a device of this process."""
    states = {"torch": torch.get_rng_state()}
    if device is not None and device.type in _ACCELERATORS:
        states[device.type] = torch.get_device_module(device.type).get_rng_state()
    return states


def restore_torch_states(states: GeneratorStates) -> None:
    """Restore the generators of :func:`torch_states`; that of a device which this machine lacks is left out."""
    for name, state in states.items():
        if name == "torch":
            torch.set_rng_state(state)
        elif has_accelerator() and torch.accelerator.current_accelerator() == torch.device(name):
            torch.get_device_module(name).set_rng_state(state)
