"""Cut a model where the slowest stage is as fast as possible, by the measured time of each layer.

A pipeline is as fast as its slowest stage. With the times t_1 .. t_n of the layers, the best cut of the first i layers
into k stages is found by dynamic programming over the last cut::

    T(i, k) = min over j < i of max(T(j, k - 1), t_{j+1} + ... + t_i)        T(i, 1) = t_1 + ... + t_i

in O(n^2 k) steps, exactly.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from rueda.data.nest import tensors
from rueda.train.buffers import buffers_restored
from rueda.world.device import wait_for


def best_cuts(seconds: Sequence[float], num_stages: int) -> list[int]:
    """Return where each stage ends, so that the slowest one is as fast as possible; no stage is empty.

    Args:
        seconds: the time of each layer.
        num_stages: the number of stages, at most that of the layers.

    >>> best_cuts([1, 1, 1, 3, 2], 2)  # 3 and 5 seconds; the other cuts have 6 or more
    [3, 5]
    """
    num_layers = len(seconds)
    sums = [0.0, *accumulate(seconds)]
    best = [[math.inf] * (num_stages + 1) for _ in range(num_layers + 1)]
    cut = [[0] * (num_stages + 1) for _ in range(num_layers + 1)]
    best[0][0] = 0.0
    for stages in range(1, num_stages + 1):
        for end in range(stages, num_layers + 1):
            for start in range(stages - 1, end):
                slowest = max(best[start][stages - 1], sums[end] - sums[start])
                if slowest < best[end][stages]:
                    best[end][stages], cut[end][stages] = slowest, start
    ends, end = [], num_layers
    for stages in range(num_stages, 0, -1):
        ends.append(end)
        end = cut[end][stages]
    return ends[::-1]


def measure_layers(
    layers: Sequence[nn.Module], inputs: tuple[Any, ...], named: dict[str, Any], *, repeats: int = 3
) -> list[float]:
    """Measure the seconds of the forward and the backward pass of each layer; the median of some repeats.

    Parameters keep their gradients and buffers their values. Random numbers are drawn as always.

    Args:
        layers: the layers, in their order.
        inputs: the inputs of the first layer.
        named: its inputs by name.
        repeats: how often each layer is measured, after one pass that is not.
    """
    found: list[list[float]] = [[] for _ in layers]
    kept = [(one, one.grad) for layer in layers for one in layer.parameters()]
    device = next((tensor.device for tensor in tensors([inputs, named])), torch.device("cpu"))
    try:
        for repeat in range(repeats + 1):
            value: Any = inputs
            for number, layer in enumerate(layers):
                value, seconds = _measured(layer, value, named if number == 0 else {}, device)
                if repeat > 0:
                    found[number].append(seconds)
    finally:
        for one, gradient in kept:
            one.grad = gradient
    return [sorted(times)[len(times) // 2] for times in found]


def _measured(layer: nn.Module, value: Any, named: dict[str, Any], device: torch.device) -> tuple[Any, float]:
    """Return the outputs of a layer, without their graph, and the seconds of its forward and backward pass."""
    arguments = value if isinstance(value, tuple) else (value,)
    leaves = tuple(_leaf(one) for one in arguments)
    with buffers_restored(layer.buffers()), torch.enable_grad():
        wait_for(device)
        began = time.perf_counter()
        # A layer that works in place may not write into a leaf.
        outputs = layer(*(one.clone() if getattr(layer, "inplace", False) else one for one in leaves), **named)
        roots = [one for one in tensors([outputs]) if one.requires_grad]
        if roots:
            torch.autograd.backward(roots, [torch.ones_like(one) for one in roots])
        wait_for(device)
        seconds = time.perf_counter() - began
    detached = tuple(one.detach() for one in outputs) if isinstance(outputs, tuple) else outputs.detach()
    return detached, seconds


def _leaf(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().requires_grad_(value.is_floating_point())
    return value
