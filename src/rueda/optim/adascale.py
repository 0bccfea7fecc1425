"""AdaScale: multiply the learning rate by a measured gain.

Johnson, Agrawal, Gu and Guestrin, *AdaScale SGD: A User-Friendly Algorithm for Distributed Training*, 2020.
Averaging S gradients g_i into g reduces the noise but not the signal. The variance s2 of one gradient and the square
mu2 of the true gradient are estimated from the gradients that data-parallel workers compute anyway::

    s2  = sum |g_i|² / (S - 1) - S / (S - 1) |g|²
    mu2 = |g|² - s2 / S
    r   = (s2 + mu2) / (s2 / S + mu2)              in [1, S]

One step at the rate times r makes the progress of about r steps of one worker: r = S if noise dominates (linear
scaling), r = 1 if there is none. The step count of the schedule advances by r per step. The paper averages s2 and mu2
over steps with the decay theta = max(1 - S / 1000, 0).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from rueda.errors import RecipeError
from rueda.optim.checks import require
from rueda.optim.engine.base import loss_of
from rueda.optim.meters import ExchangeMeter, moments
from rueda.optim.wrapper import Wrapper

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel


def gain(sum_local_square_norms: float, mean_square_norm: float, num_workers: int) -> float:
    """Return AdaScale's gain of one step from the squared norms of the workers' gradients and of their mean.

    Args:
        sum_local_square_norms: the sum of the squared norms over the workers.
        mean_square_norm: the squared norm of the mean of their gradients.
        num_workers: S, the number of workers.

    >>> gain(4 * 1.0, 1.0, 4)                   # four equal gradients: no noise, no gain
    1.0
    >>> gain(4 * 1.0, 0.25, 4)                  # orthogonal ones: nothing but noise
    4.0
    >>> gain(2 * 5.0, 3.0, 2)
    1.6666666666666667
    """
    if num_workers == 1:
        return 1.0
    return _ratio(*moments(sum_local_square_norms, mean_square_norm, num_workers), num_workers)


def _ratio(variance: float, square: float, num_workers: int) -> float:
    variance, square = max(variance, 0.0), max(square, 0.0)
    if variance + square == 0.0:
        return 1.0
    return (variance + square) / (variance / num_workers + square)


class AdaScale(Wrapper):
    """Wraps an optimizer and multiplies its learning rate by the gain.

    It needs the norms of the workers' gradients before each step: call :meth:`observe`, or call :meth:`watch` once,
    which installs a communication hook in DistributedDataParallel. A step without new norms uses the last gain.

    Args:
        optimizer: the optimizer; its rate is restored after each step, so that a scheduler can change it.
        scale: S, the number of workers whose gradients are averaged.
        smoothing: theta of the moving averages; None uses that of the paper, 0 uses each step alone.

    ``gain`` is r of the last observation, and ``clock`` the sum of the gains of all steps: evaluate a schedule that was
    made for one worker at ``clock``, and stop the training when ``clock`` reaches the number of steps of one worker.

    >>> w = torch.nn.Parameter(torch.tensor([1.0]))
    >>> w.grad = torch.tensor([0.5])
    >>> optimizer = AdaScale(torch.optim.SGD([w], lr=0.1), scale=4)
    >>> optimizer.observe([1.0, 1.0, 1.0, 1.0], 0.25)
    >>> optimizer.step()                                             # at rate 0.4
    >>> w.data, optimizer.clock, optimizer.param_groups[0]["lr"]
    (tensor([0.8000]), 4.0, 0.1)
    """

    def __init__(self, optimizer: Optimizer, scale: int, smoothing: float | None = None) -> None:
        super().__init__(optimizer)
        require("scale", scale >= 1, "a number of workers, at least 1", scale)
        require("smoothing", smoothing is None or 0 <= smoothing < 1, "None, or from 0 to below 1", smoothing)
        self.scale = scale
        self.smoothing = max(1.0 - scale / 1000.0, 0.0) if smoothing is None else smoothing
        self.clock = 0.0
        self.gain = 1.0
        self._variance = 0.0
        self._square = 0.0
        self._meter: ExchangeMeter | None = None

    def observe(self, local_square_norms: Sequence[float | Tensor] | Tensor, mean_square_norm: float | Tensor) -> None:
        """Set the gain of the next step from the squared norms of the workers' gradients and of their mean."""
        numbers = [float(value) for value in local_square_norms]
        if len(numbers) != self.scale:
            raise RecipeError(
                "AdaScale.observe",
                expected=f"{self.scale} squared norms, one per worker",
                got=len(numbers),
                do="make AdaScale with scale=the number of workers",
            )
        self.observe_sum(sum(numbers), float(mean_square_norm))

    def observe_sum(
        self, sum_local_square_norms: float, mean_square_norm: float, *, num_parts: int | None = None
    ) -> None:
        """Set the gain from the sum of the workers' squared norms and that of their mean; ignore non-finite values.

        Args:
            sum_local_square_norms: the sum of the squared norms of the parts of the gradient.
            mean_square_norm: the squared norm of the mean of the parts.
            num_parts: the number of parts of which the same batch consists here, if it is not S: a part is S / parts
                times as large as one of S workers, and the variance of its gradient as much smaller.
        """
        parts = self.scale if num_parts is None else num_parts
        if self.scale == 1 or parts == 1:
            return
        variance, square = moments(sum_local_square_norms, mean_square_norm, parts)
        variance *= self.scale / parts
        if math.isfinite(variance) and math.isfinite(square):
            theta = self.smoothing
            self._variance = theta * self._variance + (1.0 - theta) * variance
            self._square = theta * self._square + (1.0 - theta) * square
            self.gain = _ratio(self._variance, self._square, self.scale)  # both start at 0: the bias cancels

    def watch(self, model: DistributedDataParallel) -> None:
        """Measure the norms in the communication hook of a DDP model, at the cost of one small all-reduce per step."""
        self._meter = ExchangeMeter(model)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step the inner optimizer at its rate times the gain, and advance the clock."""
        loss = loss_of(closure)
        reading = None if self._meter is None else self._meter.read()
        if reading is not None:
            self.observe_sum(*reading.sums())
        self.step_with("lr", lambda rate: rate * self.gain)
        self.clock += self.gain
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the inner optimizer's state and, under ``adascale``, the clock and the averages."""
        own = {"clock": self.clock, "gain": self.gain, "variance": self._variance, "square": self._square}
        return {**super().state_dict(), "adascale": own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the inner optimizer's state and AdaScale's own; if the latter is missing, the clock starts at 0."""
        state_dict = dict(state_dict)
        own = state_dict.pop("adascale", {})
        super().load_state_dict(state_dict)
        self.clock, self.gain = own.get("clock", 0.0), own.get("gain", 1.0)
        self._variance, self._square = own.get("variance", 0.0), own.get("square", 0.0)
