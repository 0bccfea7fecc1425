"""NovoGrad for Keras; :mod:`rueda.optim.novograd` has the formula and the reference."""

from __future__ import annotations

from typing import Any

from rueda.keras.framework import keras
from rueda.keras.layerwise import LayerwiseOptimizer, ops
from rueda.optim.checks import check_novograd


@keras.saving.register_keras_serializable(package="rueda")
class NovoGrad(LayerwiseOptimizer):
    """Momentum over layer-wise normalised gradients: :class:`rueda.optim.NovoGrad` for Keras, equal step for step.

    Args:
        learning_rate: a: a number or a schedule.
        beta_1: the decay rate of the momentum.
        beta_2: the decay rate of the squared norm.
        epsilon: added to sqrt(v); above 0.
        weight_decay: the factor d of the decay.
        grad_averaging: multiply what enters the momentum by 1 - beta_1.
        **options: see :class:`~rueda.keras.layerwise.LayerwiseOptimizer`; ``adapt`` only decides about weight decay.
    """

    def __init__(
        self,
        learning_rate: Any = 1e-2,
        beta_1: float = 0.95,
        beta_2: float = 0.98,
        epsilon: float = 1e-8,
        weight_decay: float | None = 0.0,
        grad_averaging: bool = False,
        **options: Any,
    ) -> None:
        check_novograd({"betas": (beta_1, beta_2), "eps": epsilon})
        super().__init__(learning_rate, weight_decay=weight_decay, **options)
        self.beta_1, self.beta_2, self.epsilon, self.grad_averaging = beta_1, beta_2, epsilon, grad_averaging

    def begin(self, variables: list[Any]) -> None:
        """Create a momentum of zeros and a squared norm of -1, which means that there is none yet."""
        self._momentums = self.state(variables, "momentum")
        self._squares = self.state(variables, "squared_norm", scalar=True, initial=-1.0)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Step one variable."""
        t = self.tensors(gradient, variable, learning_rate)
        momentum, square = self._momentums[t.position], self._squares[t.position]
        old, new = ops.convert_to_tensor(square), t.g_norm * t.g_norm
        v = self.keep(square, t, ops.where(old < 0, new, self.beta_2 * old + (1.0 - self.beta_2) * new))
        length = ops.sqrt(ops.where(v > 0, v, ops.zeros_like(v))) + self.epsilon
        share = 1.0 - self.beta_1 if self.grad_averaging else 1.0
        entering = share * (t.g / length + t.decay * t.w)
        m = self.keep(momentum, t, self.beta_1 * ops.convert_to_tensor(momentum) + entering)
        self.move(variable, t, t.rate * m)

    def get_config(self) -> dict[str, Any]:
        """Return all arguments."""
        own = {name: getattr(self, name) for name in ("beta_1", "beta_2", "epsilon", "grad_averaging")}
        return {**super().get_config(), **own}
