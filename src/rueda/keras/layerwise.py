"""The base class of the Keras optimizers: which variables are adapted and decayed, and non-finite gradients.

Keras's optimizers have no parameter groups. What :func:`rueda.optim.parameter_groups` does for torch is a rule here:
variables with at most one dimension (biases, the parameters of normalisation layers) are neither decayed nor adapted
layer by layer, and neither are those that ``exclude`` names.

All arithmetic is written with ``keras.ops``, so that a step can be compiled by ``tf.function``, XLA and ``jax.jit``.
Formulas and references are those of the torch optimizers in :mod:`rueda.optim`, which these equal step for step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from rueda.keras.framework import keras, precise
from rueda.optim.checks import check_common, require

ops = keras.ops


class Tensors(NamedTuple):
    """What a step of one variable needs, in float32 or better."""

    position: int
    """where its state is found in each list of states"""
    w: Any
    g: Any
    """the gradient, zeros if it is not finite"""
    w_norm: Any
    """|w| if the variable is adapted, else 0"""
    g_norm: Any
    ok: Any
    """a flag on the device: gradient and weights are finite"""
    decay: float
    rate: Any


class LayerwiseOptimizer(keras.optimizers.Optimizer):  # type: ignore[misc]
    """A Keras optimizer whose update depends on the norms of whole variables.

    Common options:

    - ``weight_decay``: part of the update, as the formula of each optimizer says; Keras's own decay, which shrinks the
      weights before the update, is not applied in addition. Variables named by Keras's method
      ``exclude_from_weight_decay`` are not decayed.
    - ``adapt``: None (default) excludes variables with at most one dimension (biases and norms) from weight decay and
      layer-wise adaptation; True adapts and decays all; False adapts none and decays all.
    - ``exclude``: regular expressions; a variable whose path (``"dense_1/kernel"``) contains a match is neither adapted
      nor decayed. They are saved with the model.
    - Keras's own: ``clipnorm``, ``clipvalue``, ``global_clipnorm``, ``use_ema``, ``ema_momentum``,
      ``ema_overwrite_frequency``, ``loss_scale_factor``, ``gradient_accumulation_steps``, ``name``.

    A variable whose gradient is not finite keeps its weights and its state, as with ``nonfinite="skip"`` in torch: a
    compiled step cannot raise an error. The loss shows it; ``keras.callbacks.TerminateOnNaN`` ends the training.
    """

    def __init__(
        self,
        learning_rate: Any,
        *,
        weight_decay: float | None = 0.0,
        adapt: bool | None = None,
        exclude: Sequence[str] = (),
        **options: Any,
    ) -> None:
        rate = float(learning_rate) if isinstance(learning_rate, int) else learning_rate
        require("learning_rate", not isinstance(rate, float) or rate >= 0, "at least 0", rate)
        check_common({"weight_decay": weight_decay or 0.0, "adapt": adapt})
        super().__init__(rate, weight_decay=weight_decay or 0.0, **options)
        self.adapt, self.exclude = adapt, list(exclude)

    def build(self, variables: list[Any]) -> None:
        """Create the state of every variable, and decide which of them are adapted and decayed."""
        if self.built:
            return
        super().build(variables)
        out = [any(re.search(word, variable.path) for word in self.exclude) for variable in variables]
        out = [left or (self.adapt is None and len(v.shape) <= 1) for left, v in zip(out, variables, strict=True)]
        self._adapted = [not left and self.adapt is not False for left in out]
        self._decays = [
            0.0 if left or not self._use_weight_decay(variable) else self.weight_decay
            for left, variable in zip(out, variables, strict=True)
        ]
        self.begin(variables)

    def begin(self, variables: list[Any]) -> None:
        """Create the optimizer's own variables."""
        raise NotImplementedError

    def state(self, variables: list[Any], name: str, *, scalar: bool = False, initial: float = 0.0) -> list[Any]:
        """Add a state variable, of the same shape or a scalar, for each of the variables.

        Half-precision variables have a float32 state, since half precision would round small updates of it away.
        """
        return [
            self.add_variable(
                shape=() if scalar else variable.shape,
                initializer=keras.initializers.Constant(initial),
                dtype=precise(variable.dtype),
                name=f"{variable.path.replace('/', '_')}_{name}",
            )
            for variable in variables
        ]

    def tensors(self, gradient: Any, variable: Any, learning_rate: Any) -> Tensors:
        """Return a variable and its gradient in full precision, with their norms."""
        index = self._get_variable_index(variable)
        dtype = precise(variable.dtype)
        w, g = ops.cast(variable, dtype), ops.cast(_dense(gradient), dtype)
        zero = ops.zeros((), dtype)
        w_norm, g_norm = norm(w) if self._adapted[index] else zero, norm(g)
        ok = ops.isfinite(w_norm + g_norm)
        g = ops.where(ok, g, zero)
        return Tensors(index, w, g, w_norm, g_norm, ok, self._decays[index], ops.cast(learning_rate, dtype))

    def move(self, variable: Any, tensors: Tensors, step: Any) -> None:
        """Subtract a step from the weights, unless something is not finite."""
        self.assign(variable, ops.cast(ops.where(tensors.ok, tensors.w - step, tensors.w), variable.dtype))

    def keep(self, state: Any, tensors: Tensors, value: Any) -> Any:
        """Set a state variable, unless something is not finite; return its new value."""
        value = ops.where(tensors.ok, value, ops.convert_to_tensor(state))
        self.assign(state, value)
        return value

    def _apply_weight_decay(self, variables: list[Any]) -> None:
        """Do nothing where Keras would decay the weights: each formula has a place of its own for it."""

    def get_config(self) -> dict[str, Any]:
        """Return all arguments."""
        return {**super().get_config(), "adapt": self.adapt, "exclude": list(self.exclude)}


def norm(x: Any) -> Any:
    """Return the Euclidean norm of all elements."""
    return ops.sqrt(ops.sum(ops.square(x)))


def _dense(gradient: Any) -> Any:
    """Return a gradient as one tensor; TensorFlow gives that of an embedding as rows (``IndexedSlices``)."""
    if not hasattr(gradient, "indices") or not hasattr(gradient, "dense_shape"):
        return gradient
    from tensorflow import convert_to_tensor

    return convert_to_tensor(gradient)
