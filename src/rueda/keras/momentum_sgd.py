"""SGD whose momentum does not include the learning rate: Keras's momentum with Goyal et al.'s correction built in.

SGD with momentum has two forms, which differ when the rate changes (:func:`rueda.optim.adapters.correct_momentum`)::

    (a)  v = m v + g          w = w - rate v      this one, and torch.optim.SGD
    (b)  u = m u + rate g     w = w - u           keras.optimizers.SGD

In a warm-up, form (b) still moves by the small rates of the steps before. Goyal et al. 2017 (arXiv 1706.02677, section
3) multiply u by new rate / old rate, which makes it form (a); Horovod's callbacks do so between two steps. Form (a)
needs no correction, also with a schedule that changes the rate inside the compiled step, where no callback can be.
"""

from __future__ import annotations

from typing import Any

from rueda.keras.framework import keras
from rueda.keras.layerwise import LayerwiseOptimizer, ops
from rueda.optim.checks import require


@keras.saving.register_keras_serializable(package="rueda")
class MomentumSGD(LayerwiseOptimizer):
    """SGD with momentum in the form that needs no correction when the rate changes; equal to ``torch.optim.SGD``.

    Args:
        learning_rate: a number or a schedule.
        momentum: the factor m of the velocity.
        weight_decay: part of the gradient: g + d w.
        nesterov: move by g + m v instead of v.
        **options: see :class:`~rueda.keras.layerwise.LayerwiseOptimizer`; ``adapt`` only decides about weight decay.
    """

    def __init__(
        self,
        learning_rate: Any,
        momentum: float = 0.9,
        weight_decay: float | None = 0.0,
        nesterov: bool = False,
        **options: Any,
    ) -> None:
        require("momentum", 0 <= momentum < 1, "at least 0 and below 1", momentum)
        super().__init__(learning_rate, weight_decay=weight_decay, **options)
        self.momentum, self.nesterov = momentum, nesterov

    def begin(self, variables: list[Any]) -> None:
        """Create a momentum of zeros; not under the name by which Horovod's callbacks find what they must correct."""
        self._velocities = self.state(variables, "velocity")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Step one variable."""
        t = self.tensors(gradient, variable, learning_rate)
        buffer, g = self._velocities[t.position], t.g + t.decay * t.w
        velocity = self.keep(buffer, t, self.momentum * ops.convert_to_tensor(buffer) + g)
        self.move(variable, t, t.rate * (g + self.momentum * velocity if self.nesterov else velocity))

    def get_config(self) -> dict[str, Any]:
        """Return all arguments."""
        return {**super().get_config(), "momentum": self.momentum, "nesterov": self.nesterov}
