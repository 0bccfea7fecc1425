"""Distributed optimizers of Keras 3, on its TensorFlow, torch and JAX backends.

Keras 3 applies gradients in one method, ``apply``: ``apply_gradients`` and ``stateless_apply`` call it. Here it reduces
them first, in one call to the host. Three kinds of optimizers need more:

- With gradient accumulation (``backward_passes_per_step``, or Keras's own ``gradient_accumulation_steps``, which it
  becomes) the accumulated gradients are reduced, once an update: in ``_clip_gradients``, which Keras calls with them.
- A ``LossScaleOptimizer`` looks for infinities before it calls the optimizer that it wraps. All workers must come to
  the same decision, so gradients are reduced before it looks; an infinity on one worker is one on all.
- An optimizer of several optimizers (``MultiOptimizer``) reduces for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rueda.hvd.keras import family as families
from rueda.hvd.keras.gradients import all_finite, reduce
from rueda.hvd.keras.optimizer import Options, change_class


def distribute(optimizer: Any, options: Options) -> Any:
    """Make an optimizer of Keras 3 distributed, in place."""
    keras = families.load(families.KERAS)
    loss_scale = keras.optimizers.LossScaleOptimizer
    _teach(loss_scale)
    if families.backend_of(families.KERAS) == "tensorflow":
        families.keep_out_of_xla(keras.Model)
    if isinstance(optimizer, loss_scale):
        distribute(optimizer.inner_optimizer, options)
        return change_class(optimizer, DistributedLossScale, options)
    if options.passes > 1:
        if optimizer.gradient_accumulation_steps:
            raise ValueError(
                "backward_passes_per_step: expected 1 with an optimizer that has gradient_accumulation_steps, got "
                f"{options.passes}; give one of them"
            )
        if optimizer.built or isinstance(optimizer, getattr(keras.optimizers, "MultiOptimizer", ())):
            raise ValueError(
                "backward_passes_per_step: expected an optimizer of one rule that is not built yet; wrap it before "
                "training, and give each optimizer of a MultiOptimizer gradient_accumulation_steps"
            )
        optimizer.gradient_accumulation_steps = options.passes
    return change_class(optimizer, Distributed, options)


class Distributed:
    """The methods that every distributed optimizer of Keras 3 has."""

    _hvd: Options

    def register_local_var(self: Any, var: Any) -> None:
        """Leave the gradient of a variable to each worker: it is not reduced."""
        self._hvd.local.add(self._var_key(var))

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        """Reduce the gradients over the workers and update the variables."""
        grads = list(grads)
        if self.gradient_accumulation_steps:  # reduced when they are accumulated
            return super().apply(grads, trainable_variables)  # type: ignore[misc]
        with reduced(self, grads, trainable_variables) as grads:
            return super().apply(grads, trainable_variables)  # type: ignore[misc]

    def _backend_apply_gradients(self: Any, grads: Any, trainable_variables: Any) -> Any:
        self._hvd.keys = [self._var_key(variable) for variable in trainable_variables]
        return super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]

    def _clip_gradients(self: Any, grads: Any) -> Any:
        if self.gradient_accumulation_steps:
            grads = self._reduce_accumulated(list(grads))
        return super()._clip_gradients(grads)  # type: ignore[misc]

    def _reduce_accumulated(self: Any, grads: list[Any]) -> list[Any]:
        options = self._hvd
        # Keras has averaged over the batches; Horovod sums unless it is told to average.
        factor = float(options.passes) if options.passes > 1 and not options.average_passes else 1.0

        def exchange(values: list[Any]) -> list[Any]:
            made = reduce(options, values, options.keys)
            return [value * factor for value in made] if factor != 1.0 else made

        if families.backend_of(families.KERAS) != "jax":  # there Keras calls this method at an update only
            return exchange(grads)
        import jax

        is_update = (self._iterations.value + 1) % self.gradient_accumulation_steps == 0
        chosen: list[Any] = jax.lax.cond(is_update, exchange, lambda values: values, grads)
        return chosen


class DistributedLossScale:
    """A loss-scale optimizer around a distributed optimizer: it looks for infinities in the reduced gradients."""

    _hvd: Options

    def register_local_var(self: Any, var: Any) -> None:
        """Leave the gradient of a variable to each worker: it is not reduced."""
        self.inner_optimizer.register_local_var(var)

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        """Reduce the gradients over the workers and, if all are finite, update the variables."""
        with self._reduced(list(grads), trainable_variables) as grads:
            return super().apply(grads, trainable_variables)  # type: ignore[misc]

    def stateless_apply(self: Any, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """Reduce the gradients over the workers and, if all are finite, return updated variables."""
        with self._reduced(list(grads), self._trainable_variables) as grads:
            return super().stateless_apply(optimizer_variables, grads, trainable_variables)  # type: ignore[misc]

    @contextmanager
    def _reduced(self: Any, grads: list[Any], variables: Any) -> Iterator[list[Any]]:
        if self.inner_optimizer.gradient_accumulation_steps:
            yield grads
        else:
            with reduced(self.inner_optimizer, grads, variables) as made:
                yield made

    def check_finite(self: Any, grads: Any) -> Any:
        """Return whether the gradients of all workers are finite."""
        finite = super().check_finite(grads)  # type: ignore[misc]
        if not self.inner_optimizer.gradient_accumulation_steps:
            return finite
        # Gradients that are still being accumulated are each worker's own.
        return all_finite(self._hvd, families.load(families.KERAS).ops.cast(finite, "float32")) > 0.5


def _teach(loss_scale: Any) -> None:
    """Let ``LossScaleOptimizer(distributed)`` be distributed, since ``compile`` makes one by itself (mixed_float16)."""
    plain = loss_scale.__init__
    if hasattr(plain, "_rueda_hvd"):
        return

    def initialise(self: Any, inner_optimizer: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, inner_optimizer, *args, **kwargs)
        options = getattr(inner_optimizer, "_hvd", None)
        if options is not None and not hasattr(self, "_hvd"):
            change_class(self, DistributedLossScale, options)

    initialise._rueda_hvd = True  # type: ignore[attr-defined]
    loss_scale.__init__ = initialise


@contextmanager
def reduced(optimizer: Any, grads: list[Any], variables: Any) -> Iterator[list[Any]]:
    """Reduce gradients, unless an enclosing call has done it, and let enclosed calls leave them as they are."""
    options: Options = optimizer._hvd
    if options.reduced:
        yield grads
        return
    known = variables if variables is not None else optimizer._trainable_variables
    made = reduce(options, grads, [optimizer._var_key(variable) for variable in known])
    options.reduced = True
    try:
        yield made
    finally:
        options.reduced = False
