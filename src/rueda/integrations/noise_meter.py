"""The gradient noise scale in a training loop that is not Rueda's own: one class for one worker and for many.

Which gradients are compared depends on the model: a DistributedDataParallel model compares those of its workers (its
communication hook), any other one those of the micro-batches of gradient accumulation (hooks on its parameters). The
hooks only read: gradients, and so the training, are the same bit for bit as without them.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rueda.errors import RecipeError
from rueda.optim.backward_meter import BackwardMeter
from rueda.optim.meters import ExchangeMeter, Reading
from rueda.optim.noise_scale import Estimator
from rueda.records.profile import NoiseScale
from rueda.world.idle_threads import wait_at_exit


class NoiseMeter:
    """Measures the gradient noise scale every few updates (McCandlish et al. 2018, see :mod:`rueda.optim.noise_scale`).

    The loop calls :meth:`begin` before the first backward pass of an update, :meth:`part` after each backward pass, and
    :meth:`end` after the last one, on all workers. The losses of micro-batches must add up to the mean loss of the
    update: ``loss / num_micro_batches``, as Accelerate, Lightning and the Trainer of Hugging Face divide it.

    An update whose parts have different numbers of examples (the last one of an epoch) is not measured, nor is one of
    a single part.

    Args:
        model: the model; a DistributedDataParallel one must have no communication hook yet.
        every: updates between measurements.
        memory: length of the moving average, in measurements; None: all count equally.

    >>> import torch
    >>> model = nn.Linear(3, 1)
    >>> meter, inputs = NoiseMeter(model), torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(0))
    >>> for step in range(4):
    ...     meter.begin(step)
    ...     for micro_batch in inputs:
    ...         (model(micro_batch).square().mean() / 2).backward()
    ...         meter.part(len(micro_batch))
    ...     noise = meter.end(step)
    ...     model.zero_grad()
    >>> noise.steps, noise.source, noise.value > 0
    (4, 'micro-batches', True)
    """

    def __init__(self, model: nn.Module, *, every: int = 1, memory: int | None = 200) -> None:
        if every < 1:
            raise RecipeError("noise scale: every", expected="1 or more updates", got=every, do="correct it")
        self.every = every
        self.current: NoiseScale | None = None
        """the last estimate"""
        self._estimator = Estimator(memory)
        self._exchange: ExchangeMeter | None = None
        self._parts: BackwardMeter | None = None
        self._sizes: list[int] = []
        self._exchanged = False
        if isinstance(model, DistributedDataParallel):
            wait_at_exit()
            self._exchange = _exchange_meter(model)
            self._exchange.active = False
        else:
            self._parts = BackwardMeter(parameter for parameter in model.parameters() if parameter.requires_grad)

    @property
    def num_workers(self) -> int:
        """The number of workers whose gradients are compared; 1 if those of micro-batches are."""
        return 1 if self._exchange is None else self._exchange.num_workers

    def begin(self, step: int) -> None:
        """Begin an update, given the number of updates made so far."""
        self._set_active((step + 1) % self.every == 0)
        self._sizes, self._exchanged = [], False

    def part(self, num_examples: int) -> None:
        """Note the examples of the micro-batch whose backward pass has just ended.

        Raises:
            RecipeError: the workers have exchanged the gradients of an earlier micro-batch already.
        """
        if self._exchanged:
            raise RecipeError(
                "noise scale", expected="one all-reduce an update", got="one for each micro-batch",
                do="run all micro-batches but the last within model.no_sync()",
            )  # fmt: skip
        self._exchanged = self._exchange is not None and self._exchange.has_measured
        self._sizes.append(num_examples)
        if self._parts is not None:
            self._parts.take(num_examples)

    def end(self, step: int, *, loss_scale: float = 1.0) -> NoiseScale | None:
        """End an update; return the new estimate, or None if this update was not measured.

        Args:
            step: the number of updates made so far; this one is not yet counted.
            loss_scale: what fp16 has multiplied the losses by.
        """
        reading, self._exchanged = self._reading(), False
        self._set_active(False)
        if reading is None:
            return None
        local, mean = (value / loss_scale**2 for value in reading.sums())
        if not self._estimator.observe(local, mean, reading.num_parts, reading.examples_per_part):
            return None
        source = "micro-batches" if self._exchange is None else "workers"
        self.current = self._estimator.estimate(step=step + 1, source=source)
        return self.current

    def figures(self) -> dict[str, float]:
        """Return the last estimate for a log: value and interval, without those that are infinite.

        Nothing is returned before the second measurement, since one alone has no interval.
        """
        return {} if self.current is None or self.current.steps < 2 else log_figures(self.current)

    def state_dict(self) -> dict[str, Any]:
        """Return the averages as plain numbers."""
        return self._estimator.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the averages."""
        self._estimator.load_state_dict(state)

    def close(self) -> None:
        """Stop measuring: remove the hooks of the parameters; that of DistributedDataParallel stays, without effect."""
        self._set_active(False)
        if self._parts is not None:
            self._parts.remove()

    def _reading(self) -> Reading | None:
        if self._exchange is not None:
            return self._exchange.read(sum(self._sizes)) if self._exchange.active else None
        assert self._parts is not None
        sizes = set(self._parts.sizes)
        comparable = len(self._parts.sizes) >= 2 and len(sizes) == 1
        reading = self._parts.finish()
        return reading if comparable else None

    def _set_active(self, active: bool) -> None:
        if self._exchange is not None:
            self._exchange.active = active
        if self._parts is not None:
            self._parts.active = active
            self._parts.reset()


def log_figures(noise: NoiseScale) -> dict[str, float]:
    """Return an estimate as numbers for a log, under the names of Rueda's own rows; infinite ones are left out."""
    figures = {"noise_scale": noise.value, "noise_scale_low": noise.low, "noise_scale_high": noise.high}
    return {name: value for name, value in figures.items() if isfinite(value)}


def _exchange_meter(model: DistributedDataParallel) -> ExchangeMeter:
    try:
        return ExchangeMeter(model)
    except RuntimeError as error:
        expected, got = "a model without a communication hook", str(error).splitlines()[0]
        raise RecipeError("noise scale", expected=expected, got=got, do="leave the other hook out") from None
