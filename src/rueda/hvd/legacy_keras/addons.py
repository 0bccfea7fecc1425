"""LAMB and NovoGrad of tensorflow_addons, for tf_keras and for Keras 3.

LAMB is that of You et al. (arXiv 1904.00962), as in :mod:`rueda.optim.lamb` with bias correction, but every tensor is
adapted, biases included, unless its name matches a pattern of ``exclude_from_layer_adaptation``::

    m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g²
    u = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + d w
    w = w - lr r u,  r = |w| / |u|, or 1 where one of the two is 0

NovoGrad is that of Ginsburg et al. (arXiv 1905.11286), as in :mod:`rueda.optim.novograd`, with two differences that
change the result: the learning rate is inside the momentum, so that a change of the rate does not affect the momentum
accumulated so far, and ``grad_averaging`` begins with the second step::

    v = |g|² at the first step, then b2 v + (1 - b2) |g|²
    a = b1 a - lr (g / (sqrt(v) + eps) + d w),  w = w + a

The formulas are written once, for any array library: ``ops`` has ``sqrt``, ``sum``, ``where`` and ``maximum``.
"""

from __future__ import annotations

import functools
import os
import re
from types import SimpleNamespace
from typing import Any


def lamb_step(
    ops: Any,
    w: Any,
    g: Any,
    m: Any,
    v: Any,
    t: Any,
    *,
    betas: tuple[float, float],
    eps: float,
    decay: float,
    adapt: bool,
) -> tuple[Any, Any, Any]:
    """Return the update of a tensor, still without the learning rate, and its two moments.

    Args:
        ops: the array library.
        w, g, m, v: the tensor, its gradient and its moments before this step.
        t: the number of this step, from 1, of the tensor's dtype.
        betas, eps, decay: b1 and b2, eps, d.
        adapt: whether the update is scaled by |w| / |u|.
    """
    beta1, beta2 = betas
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * (g * g)
    update = m / (1 - beta1**t) / (ops.sqrt(v / (1 - beta2**t)) + eps)
    if decay:
        update = update + decay * w
    if adapt:
        of_w, of_u = ops.sqrt(ops.sum(w * w)), ops.sqrt(ops.sum(update * update))
        both = (of_w > 0) & (of_u > 0)
        update = ops.where(both, of_w / ops.where(both, of_u, 1.0), 1.0) * update
    return update, m, v


def novograd_step(
    ops: Any, w: Any, g: Any, a: Any, v: Any, top: Any, is_first: Any, *, lr: Any, betas: tuple[float, float],
    eps: float, decay: float, average: bool,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Return the new momentum, which is added to the tensor, the squared norm, and its largest value so far.

    Args:
        ops: the array library.
        w, g, a, v: the tensor, its gradient, its momentum and its squared norm before this step.
        top: the largest squared norm before this step, by which amsgrad divides; None without amsgrad.
        is_first: whether this is step 1, as a boolean tensor.
        lr: the learning rate.
        betas, eps, decay: b1 and b2, eps, d.
        average: whether the gradient is multiplied by 1 - b1 from the second step on.
    """
    beta1, beta2 = betas
    square = ops.sum(g * g)
    v = ops.where(is_first, square, beta2 * v + (1 - beta2) * square)
    if top is not None:
        top = ops.maximum(top, v)
    move = g / (ops.sqrt(v if top is None else top) + eps)
    if decay:
        move = move + decay * w
    if average:
        move = ops.where(is_first, move, (1 - beta1) * move)
    return beta1 * a - lr * move, v, top


def keras_of_tensorflow() -> Any:
    """Return the package behind ``tf.keras``: tf_keras if ``TF_USE_LEGACY_KERAS`` asks for it, else Keras 3."""
    import importlib

    is_legacy = os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")
    return importlib.import_module("tf_keras" if is_legacy else "keras")


@functools.cache
def optimizers() -> dict[str, type]:
    """Return LAMB and NovoGrad as optimizers of the Keras behind ``tf.keras``."""
    keras = keras_of_tensorflow()
    base = _base(keras)
    register = keras.utils.register_keras_serializable(package="Addons")
    return {kind.__name__: register(kind) for kind in (_lamb(base), _novograd(base))}


def _base(keras: Any) -> Any:
    """Return a base class in which Keras 3 and tf_keras look the same."""
    import tensorflow as tf

    is_keras_3 = hasattr(keras, "ops")
    flag = "built" if is_keras_3 else "_built"
    ops = keras.ops if is_keras_3 else SimpleNamespace(
        sqrt=tf.sqrt, sum=tf.reduce_sum, where=tf.where, maximum=tf.maximum, cast=tf.cast
    )  # fmt: skip

    class Addons(keras.optimizers.Optimizer):  # type: ignore[misc]
        """An optimizer with named slots, each of the shape of its variable or a single number."""

        def __init__(self, name: str, learning_rate: Any, **kwargs: Any) -> None:
            if is_keras_3:
                super().__init__(learning_rate=learning_rate, name=name, **kwargs)
            else:
                super().__init__(name, **kwargs)
                self._learning_rate = self._build_learning_rate(learning_rate)
            self.ops = ops

        def slots(self) -> dict[str, bool]:
            """Return the names of the slots, and whether each is like the tensor or one number."""
            raise NotImplementedError

        def build(self, var_list: Any) -> None:
            """Make the slots."""
            if getattr(self, flag, False):
                return
            super().build(var_list)
            self._slots = [self._slot(var, name, like) for var in var_list for name, like in self.slots().items()]
            setattr(self, flag, True)

        def _slot(self, var: Any, name: str, is_like: bool) -> Any:
            if not is_like:
                return self.add_variable(shape=(), dtype=var.dtype, initializer="zeros", name=name)
            if is_keras_3:
                return self.add_variable_from_reference(var, name=name)
            return self.add_variable_from_reference(model_variable=var, variable_name=name)

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any = None) -> None:
            """Update one variable; tf_keras gives no learning rate."""
            if isinstance(gradient, tf.IndexedSlices):
                gradient = tf.convert_to_tensor(gradient)
            rate = ops.cast(self.learning_rate if learning_rate is None else learning_rate, variable.dtype)
            index = self._get_variable_index(variable) if is_keras_3 else self._index_dict[self._var_key(variable)]
            number = len(self.slots())
            self.step(gradient, variable, self._slots[index * number : (index + 1) * number], rate)

        def step(self, gradient: Any, variable: Any, slots: list[Any], rate: Any) -> None:
            """Update one variable and its slots."""
            raise NotImplementedError

        def rate_config(self) -> dict[str, Any]:
            """Return the learning rate for the configuration, which tf_keras leaves to each class."""
            return {} if is_keras_3 else {"learning_rate": self._serialize_hyperparameter(self._learning_rate)}

    return Addons


def _lamb(base: Any) -> type:
    class LAMB(base):  # type: ignore[misc]
        """Layer-wise adaptive moments, as in tensorflow_addons."""

        def __init__(
            self, learning_rate: Any = 0.001, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-6,
            weight_decay: float = 0.0, exclude_from_weight_decay: Any = None, exclude_from_layer_adaptation: Any = None,
            name: str = "LAMB", **kwargs: Any,
        ) -> None:  # fmt: skip
            decay = kwargs.pop("weight_decay_rate", weight_decay)  # its name in older versions
            super().__init__(name, learning_rate, **kwargs)
            self.beta_1, self.beta_2, self.epsilon, self.weight_decay_rate = beta_1, beta_2, epsilon or 1e-7, decay
            self.exclude_from_weight_decay = exclude_from_weight_decay
            self.exclude_from_layer_adaptation = exclude_from_layer_adaptation or exclude_from_weight_decay

        def slots(self) -> dict[str, bool]:
            return {"m": True, "v": True}

        def step(self, gradient: Any, variable: Any, slots: list[Any], rate: Any) -> None:
            first, second = slots
            name = getattr(variable, "path", None) or re.sub(r":\d+$", "", variable.name)
            update, m, v = lamb_step(
                self.ops, variable, gradient, first, second,
                self.ops.cast(self.iterations + 1, variable.dtype), betas=(self.beta_1, self.beta_2), eps=self.epsilon,
                decay=0.0 if _matches(self.exclude_from_weight_decay, name) else self.weight_decay_rate or 0.0,
                adapt=not _matches(self.exclude_from_layer_adaptation, name),
            )  # fmt: skip
            first.assign(m)
            second.assign(v)
            variable.assign(variable - rate * update)

        def get_config(self) -> dict[str, Any]:
            config = {**super().get_config(), **self.rate_config(), "weight_decay": self.weight_decay_rate}
            names = ("beta_1", "beta_2", "epsilon", "exclude_from_weight_decay", "exclude_from_layer_adaptation")
            return {**config, **{name: getattr(self, name) for name in names}}

    return LAMB


def _novograd(base: Any) -> type:
    class NovoGrad(base):  # type: ignore[misc]
        """Momentum over gradients that are normalised layer by layer, as in tensorflow_addons."""

        def __init__(
            self, learning_rate: Any = 0.001, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-7,
            weight_decay: float = 0.0, grad_averaging: bool = False, amsgrad: bool = False, name: str = "NovoGrad",
            **kwargs: Any,
        ) -> None:  # fmt: skip
            if weight_decay < 0.0:
                raise ValueError("Weight decay rate cannot be negative")
            super().__init__(name, learning_rate, **kwargs)
            self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon or 1e-7
            self.weight_decay_rate, self.grad_averaging, self.amsgrad = weight_decay, grad_averaging, amsgrad

        def slots(self) -> dict[str, bool]:
            return {"m": True, "v": False, **({"vhat": False} if self.amsgrad else {})}

        def step(self, gradient: Any, variable: Any, slots: list[Any], rate: Any) -> None:
            momentum, square, *rest = slots
            a, v, top = novograd_step(
                self.ops, variable, gradient, momentum, square, rest[0] if rest else None,
                self.ops.cast(self.iterations, "int64") == 0, lr=rate, betas=(self.beta_1, self.beta_2),
                eps=self.epsilon, decay=self.weight_decay_rate, average=self.grad_averaging,
            )  # fmt: skip
            momentum.assign(a)
            square.assign(v)
            if rest:
                rest[0].assign(top)
            variable.assign(variable + a)

        def get_config(self) -> dict[str, Any]:
            config = {**super().get_config(), **self.rate_config(), "weight_decay": self.weight_decay_rate}
            return {**config, **{name: getattr(self, name) for name in ("beta_1", "beta_2", "epsilon",
                                                                        "grad_averaging", "amsgrad")}}  # fmt: skip

    return NovoGrad


def _matches(patterns: Any, name: str) -> bool:
    """Return whether a name matches one of some regular expressions."""
    return any(re.search(pattern, name) for pattern in patterns or ())
