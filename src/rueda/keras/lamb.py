"""LAMB for Keras; :mod:`rueda.optim.lamb` has the formula and the reference.

``keras.optimizers.Lamb`` computes the same update if there is no weight decay and every variable is adapted
(``Lamb(epsilon=1e-7, adapt=True)`` here). It differs in three points: its ``weight_decay`` shrinks the weights before
the update, instead of being a part of the update and of its norm, as in the paper; it adapts biases and norms as well;
and its default epsilon is 1e-7 (1e-6 in the paper and here).
"""

from __future__ import annotations

from math import inf, log
from typing import Any

from rueda.keras.framework import keras
from rueda.keras.layerwise import LayerwiseOptimizer, norm, ops
from rueda.optim.checks import check_lamb


@keras.saving.register_keras_serializable(package="rueda")
class Lamb(LayerwiseOptimizer):
    """Layer-wise adaptive moments: :class:`rueda.optim.LAMB` as a Keras optimizer, equal step for step.

    For ``max_grad_norm`` of the torch optimizer use Keras's ``global_clipnorm``.

    Args:
        learning_rate: the fraction of its norm by which a layer moves: a number or a schedule.
        beta_1, beta_2: the decay rates of the two moments.
        epsilon: added to sqrt(v^); above 0.
        weight_decay: d, part of the update and so of its norm.
        debias: correct the bias of both moments, which start at zero.
        phi: (low, high), the limits of the weight norm.
        **options: see :class:`~rueda.keras.layerwise.LayerwiseOptimizer`.
    """

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float | None = 0.0,
        debias: bool = True,
        phi: tuple[float, float] | None = None,
        **options: Any,
    ) -> None:
        check_lamb({"betas": (beta_1, beta_2), "eps": epsilon, "phi": phi})
        super().__init__(learning_rate, weight_decay=weight_decay, **options)
        self.beta_1, self.beta_2, self.epsilon, self.debias = beta_1, beta_2, epsilon, debias
        self.phi = None if phi is None else list(phi)

    def begin(self, variables: list[Any]) -> None:
        """Create two moments of zeros and a step count for each variable, since a step may skip some variables."""
        self._firsts, self._seconds = (self.state(variables, name) for name in ("momentum", "velocity"))
        self._steps = self.state(variables, "step", scalar=True)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Step one variable."""
        t = self.tensors(gradient, variable, learning_rate)
        first, second, step = (states[t.position] for states in (self._firsts, self._seconds, self._steps))
        count = self.keep(step, t, ops.convert_to_tensor(step) + 1.0)
        m = self.keep(first, t, self.beta_1 * ops.convert_to_tensor(first) + (1.0 - self.beta_1) * t.g)
        v = self.keep(second, t, self.beta_2 * ops.convert_to_tensor(second) + (1.0 - self.beta_2) * t.g * t.g)
        if self.debias:
            m, v = m / _correction(self.beta_1, count), v / _correction(self.beta_2, count)
        update = m / (ops.sqrt(v) + self.epsilon) + t.decay * t.w
        ratio: Any = 1.0
        if self._adapted[t.position]:
            size, length = self._limited(t.w_norm), norm(update)
            both = ops.logical_and(size > 0, length > 0)
            ratio = ops.where(both, size / ops.where(both, length, ops.ones_like(length)), ops.ones_like(size))
        self.move(variable, t, t.rate * ratio * update)

    def _limited(self, size: Any) -> Any:
        """Return phi(|w|)."""
        if self.phi is None:
            return size
        low, high = self.phi
        size = ops.where(size < low, low * ops.ones_like(size), size)
        return ops.where(size > high, high * ops.ones_like(size), size)

    def get_config(self) -> dict[str, Any]:
        """Return all arguments."""
        own = {name: getattr(self, name) for name in ("beta_1", "beta_2", "epsilon", "debias")}
        return {**super().get_config(), **own, "phi": None if self.phi is None else list(self.phi)}


def _correction(beta: float, count: Any) -> Any:
    """Return 1 - beta^count, computed as -expm1(count log beta), which is accurate in float32 too.

    The count is 0 if every update so far was skipped; it is then replaced by 1, to avoid 0 / 0.
    """
    return -ops.expm1(ops.where(count > 0, count, ops.ones_like(count)) * (log(beta) if beta else -inf))
