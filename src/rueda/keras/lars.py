"""LARS for Keras; :mod:`rueda.optim.lars` has the formula and the reference."""

from __future__ import annotations

from typing import Any

from rueda.keras.framework import keras
from rueda.keras.layerwise import LayerwiseOptimizer, ops
from rueda.optim.checks import check_lars


@keras.saving.register_keras_serializable(package="rueda")
class Lars(LayerwiseOptimizer):
    """Layer-wise adaptive rate scaling: :class:`rueda.optim.LARS` as a Keras optimizer, equal step for step.

    Args:
        learning_rate: the global rate, gamma: a number, or a schedule such as :func:`rueda.keras.schedule` returns.
        momentum: m; 0 keeps no state. It includes the rate, as in the paper.
        weight_decay: beta, part of the gradient.
        trust: eta, the fraction of a layer's norm by which a step at rate 1 moves it.
        nesterov: use Nesterov momentum.
        form: ``"paper"`` multiplies the local rate by the global one, ``"clipped"`` limits it to the global one.
        epsilon: added to the denominator of lambda.
        **options: see :class:`~rueda.keras.layerwise.LayerwiseOptimizer`.
    """

    def __init__(
        self,
        learning_rate: Any,
        momentum: float = 0.9,
        weight_decay: float | None = 0.0,
        trust: float = 0.001,
        nesterov: bool = False,
        form: str = "paper",
        epsilon: float = 0.0,
        **options: Any,
    ) -> None:
        own = {"momentum": momentum, "trust": trust, "nesterov": nesterov, "form": form}
        check_lars({**own, "eps": epsilon})
        super().__init__(learning_rate, weight_decay=weight_decay, **options)
        self.momentum, self.trust, self.nesterov, self.form, self.epsilon = momentum, trust, nesterov, form, epsilon

    def begin(self, variables: list[Any]) -> None:
        """Create a momentum of zeros, if there is any momentum."""
        self._momentums = self.state(variables, "momentum") if self.momentum else []

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Step one variable."""
        t = self.tensors(gradient, variable, learning_rate)
        below = t.g_norm + t.decay * t.w_norm + self.epsilon
        local = t.w_norm * self.trust / ops.where(below > 0, below, ops.ones_like(below))
        scaled = ops.where(local < t.rate, local, t.rate) if self.form == "clipped" else t.rate * local
        rate = ops.where(ops.logical_and(t.w_norm > 0, t.g_norm > 0), scaled, t.rate)
        step = rate * (t.g + t.decay * t.w)
        if self.momentum:
            buffer = self._momentums[t.position]
            velocity = self.keep(buffer, t, self.momentum * ops.convert_to_tensor(buffer) + step)
            step = step + self.momentum * velocity if self.nesterov else velocity
        self.move(variable, t, step)

    def get_config(self) -> dict[str, Any]:
        """Return all arguments."""
        own = {name: getattr(self, name) for name in ("momentum", "trust", "nesterov", "form", "epsilon")}
        return {**super().get_config(), **own}
