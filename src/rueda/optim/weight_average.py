"""The exponential moving average of the weights, which is evaluated instead of them.

After each update the average moves towards the weights:

    average <- rho average + (1 - rho) weights

It remembers about 1 / (1 - rho) updates. A batch that is k times as large makes k times fewer updates of the same
examples, so the same rho would remember k times as many examples; Busbridge et al. 2023 (How to Scale Your EMA,
2307.13813) therefore use rho^k, beside the scaled learning rate:

    1 update at k times the batch:  rho^k          k updates at the batch:  rho rho ... rho = rho^k
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rueda.errors import RecipeError
from rueda.optim.engine.lanes import local


def scaled_decay(decay: float, scale: float) -> float:
    """Return the decay of an average at a batch that is ``scale`` times as large.

    >>> round(scaled_decay(0.99, scale=8), 4)
    0.9227
    """
    return float(decay**scale)


class WeightAverage:
    """Keeps the exponential moving average of a model's parameters.

    Call :meth:`update` after each step of the optimizer, and evaluate and export the model within :meth:`applied`. The
    workers of a data-parallel training have the same weights, so each has the same average and nothing is exchanged; of
    a sharded model each averages its own parts.
    Buffers, such as the running statistics of batch norm, are not averaged.

    Args:
        model: the model; only parameters in floating point are averaged.
        decay: rho at the batch for which it was chosen, above 0 and below 1.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.zeros_(model.weight)
    >>> average = WeightAverage(model, decay=0.9)
    >>> _ = nn.init.ones_(model.weight)
    >>> average.update()
    >>> with average.applied():
    ...     print(round(model.weight.item(), 4))
    0.1
    >>> model.weight.item()
    1.0
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 < decay < 1:
            raise RecipeError("ema_decay", expected="a number above 0 and below 1", got=decay, do="give e.g. 0.999")
        self.decay = decay
        self._parameters = {
            name.replace("_orig_mod.", ""): one for name, one in model.named_parameters() if one.is_floating_point()
        }
        self._averages = [one.detach().clone() for one in self._parameters.values()]

    @torch.no_grad()
    def update(self, scale: float = 1.0) -> None:
        """Move the average towards the weights.

        Args:
            scale: the batch of this update divided by the batch for which the decay was chosen.
        """
        averages = [local(one) for one in self._averages]
        torch._foreach_lerp_(averages, self._weights(), 1 - scaled_decay(self.decay, scale))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the average into the model for the length of a ``with`` block."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the weights of the model and the average."""
        weights, averages = self._weights(), [local(one) for one in self._averages]
        before = [one.clone() for one in weights]
        torch._foreach_copy_(weights, averages)
        torch._foreach_copy_(averages, before)

    def _weights(self) -> list[Tensor]:
        """Return the weights; of a sharded model, this worker's parts."""
        return [local(one.detach()) for one in self._parameters.values()]

    def state_dict(self) -> dict[str, Tensor]:
        """Return the average by the names of the parameters."""
        return dict(zip(self._parameters, self._averages, strict=True))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved average."""
        for name, average in self.state_dict().items():
            average.copy_(state[name])
