"""Choose the chunk size and the memory format that make an evaluation fast, from a forward pass on two examples.

A chunk whose activations stay in the processor's caches is not written to memory and read back between two layers. But
every chunk reads all weights again, so a layer that has more weights than activations needs larger chunks. The choice
follows from the sizes of both and not from measured times: the same model and data give the same chunks on every
worker, and so the same sums to the last bit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from rueda.data.nest import num_bytes
from rueda.examine.objective.examples import Inputs, each, parts, take
from rueda.records import Recipe
from rueda.train.layout import memory_format, to_memory_format

CACHE_BYTES = 16 << 20
"""bytes that one layer may read and write per chunk; a quarter of it is 10 % slower, an eighth 25 %"""
LARGEST_CHUNK = 1024
ACCELERATOR_CHUNK = 1024
"""the chunk on a GPU, which needs much work per kernel"""


def wanted_order(model: nn.Module) -> torch.memory_format:
    """Return the fastest memory format for the model: channels last if it has convolutions."""
    precision = "float64" if next(model.parameters()).dtype == torch.float64 else "float32"
    return memory_format(model, Recipe(precision=precision))


def runs_in(order: torch.memory_format, model: nn.Module, inputs: Inputs) -> bool:
    """Return whether the model runs in a memory format (``.view`` of an activation may fail)."""
    try:
        with torch.inference_mode():
            model(*parts(arranged(take(inputs, 0, 2), order)))
    except RuntimeError:
        return False
    return True


def best_chunk(model: nn.Module, inputs: Inputs, num_examples: int) -> int:
    """Choose the largest power of two for which no layer reads and writes more activations than the cache holds.

    It is larger where the weights of a layer would otherwise be more than half of what is read (a wide linear layer).
    """
    first = next(model.parameters())
    if first.device.type != "cpu":
        return min(ACCELERATOR_CHUNK, num_examples)
    num_probed = min(2, num_examples)
    largest, weights = 1, 0

    def measure(module: nn.Module, given: tuple[Any, ...], outputs: Any) -> None:
        nonlocal largest, weights
        largest = max(largest, (num_bytes(given) + num_bytes(outputs)) // num_probed)
        weights = max(weights, num_bytes(list(module.parameters())))

    leaves = [module for module in model.modules() if not any(module.children())]
    hooks = [module.register_forward_hook(measure) for module in leaves]
    try:
        with torch.inference_mode():
            model(*parts(take(inputs, 0, num_probed)))
    finally:
        for hook in hooks:
            hook.remove()
    wanted = max(1, CACHE_BYTES // largest, 2 * weights // largest)
    return int(min(1 << (wanted.bit_length() - 1), LARGEST_CHUNK, num_examples))


def arranged(inputs: Inputs, order: torch.memory_format) -> Inputs:
    """Convert inputs to a memory format."""
    return each(lambda part: to_memory_format(part, order), inputs)
