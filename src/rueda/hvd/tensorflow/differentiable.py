"""TensorFlow's automatic differentiation of the collectives, in eager mode and within a ``tf.function``.

The passes are those of :mod:`rueda.hvd.torch.passes`; each is one call through :mod:`rueda.hvd.bridge.tensorflow`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from rueda.hvd.bridge.tensorflow import host_call, tf
from rueda.hvd.torch.passes import Collective


def differentiable(
    collective: Collective, tensors: Sequence[Any], like: Sequence[Any], saved_like: Sequence[Any] = ()
) -> list[Any]:
    """Run a collective of TensorFlow tensors and return its results, through which gradients flow.

    Args:
        collective: the forward and backward pass.
        tensors: the tensors, and after them inputs without a gradient, such as splits.
        like: the dtypes and shapes of the results (see ``host_call``).
        saved_like: those of what the collective saves for its backward pass.
    """
    if not tensors:
        return []

    def forward(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        results = collective.forward(inputs)
        return [*results, *collective.saved(inputs, results)]

    def apply(*inputs: Any) -> Any:
        made = host_call(forward, inputs, [*like, *saved_like])
        results, saved = made[: len(like)], made[len(like) :]

        def gradient(*given: Any) -> list[Any]:
            arriving = [tf.zeros_like(x) if g is None else g for g, x in zip(given, results, strict=True)]
            wanted = [tf.TensorSpec(x.shape, x.dtype) for x in inputs if _has_gradient(x)]

            def backward(inner: list[torch.Tensor]) -> list[torch.Tensor]:
                found = collective.backward(inner[: len(like)], inner[len(like) :])
                return [g for g in found if g.is_floating_point() or g.is_complex()]

            returned = iter(host_call(backward, [*arriving, *saved], wanted))
            return [next(returned) if _has_gradient(x) else None for x in inputs]

        return results, gradient

    return list(tf.custom_gradient(apply)(*[tf.convert_to_tensor(tensor) for tensor in tensors]))


def name_of(kind: str, name: str | None, tensor: Any) -> str | None:
    """Return the name by which ranks match a collective.

    Within a ``tf.function`` it is made from the name of the tensor's operation, as in Horovod; in eager mode, where
    tensors have no name, collectives without one are matched by their order.
    """
    if name is not None or tf.executing_eagerly():
        return name
    return f"Horovod{kind}_{re.sub('[^a-zA-Z0-9_]', '_', getattr(tensor, 'name', ''))}"


def _has_gradient(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)
