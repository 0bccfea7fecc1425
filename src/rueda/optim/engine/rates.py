"""The layer-wise learning rates of a lane's tensors, as a vector on the device, and their weight decay."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rueda.optim.engine.blocks import Blocks
from rueda.optim.engine.lanes import Lane


def local_rates(lane: Lane, blocks: Blocks, norms: Tensor, trust: float, eps: float) -> Tensor:
    """Return trust |w| / (|g| + decay |w| + eps) of each tensor; 0 if a norm is 0 or the tensor is not adapted."""
    g, w = norms
    w = w * blocks.constant(*map(float, lane.adapted), like=norms)
    below = torch.addcmul(g, blocks.constant(*lane.decays, like=norms), w) if any(lane.decays) else g
    if eps:
        below = below + eps
    return torch.where(g > 0, (trust * w) / below, blocks.constant(0.0, like=norms))


def add_decay_(lane: Lane, targets: Sequence[Tensor], weights: Sequence[Tensor], sign: float = 1.0) -> None:
    """Add each tensor's weight decay times its weights: one operation for each decay, of which there is mostly one."""
    for decay in sorted(set(lane.decays) - {0.0}):
        mine = [number for number, other in enumerate(lane.decays) if other == decay]
        torch._foreach_add_([targets[i] for i in mine], [weights[i] for i in mine], alpha=sign * decay)
