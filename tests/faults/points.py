"""The training of the elastic jobs: points of three classes, a network of two layers in float64, and plain SGD.

The global batch is the same for any number of workers, and the order of the examples depends on the epoch alone. So a
job whose workers come and go makes the updates of a single worker that was never disturbed, up to rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NUM, GLOBAL_BATCH, RATE = 480, 24, 0.05
STEPS_PER_EPOCH = NUM // GLOBAL_BATCH


def data(first: bool = True) -> tuple[Tensor, Tensor]:
    """Return the training or the test data."""
    generator = torch.Generator().manual_seed(1 if first else 2)
    targets = torch.randint(0, 3, (NUM,), generator=generator)
    centres = torch.randn(3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return centres[targets] + 1.5 * torch.randn(NUM, 8, generator=generator, dtype=torch.float64), targets


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def batch_of(step: int, seed: int = 0) -> Tensor:
    """Return the examples of an update, counted from 0, of all workers together."""
    epoch, place = divmod(step, STEPS_PER_EPOCH)
    order = torch.randperm(NUM, generator=torch.Generator().manual_seed(1000 * seed + epoch))
    return order[GLOBAL_BATCH * place : GLOBAL_BATCH * (place + 1)]


def gradient(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the gradient of the loss of some examples of a batch, divided by the whole batch, as one vector."""
    model.zero_grad()
    (F.cross_entropy(model(inputs), targets, reduction="sum") / GLOBAL_BATCH).backward()
    return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])


def update(model: nn.Module, total: Tensor) -> None:
    """Go one step along a gradient."""
    with torch.no_grad():
        place = 0
        for one in model.parameters():
            one -= RATE * total[place : place + one.numel()].view_as(one)
            place += one.numel()


def accuracy(model: nn.Module) -> float:
    inputs, targets = data(first=False)
    return float((model(inputs).argmax(1) == targets).double().mean())


def vector(model: nn.Module) -> Tensor:
    """Return all parameters as one vector."""
    return torch.cat([one.detach().flatten() for one in model.parameters()])


def undisturbed(steps: int, seed: int = 0) -> nn.Module:
    """Train in this process, as one worker that is never disturbed."""
    model, (inputs, targets) = network(seed), data()
    for step in range(steps):
        indices = batch_of(step, seed)
        update(model, gradient(model, inputs[indices], targets[indices]))
    return model
