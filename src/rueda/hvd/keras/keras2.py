"""Distributed optimizers of tf_keras (Keras 2), the new ones and those of ``optimizers.legacy``.

Both kinds aggregate gradients in a method of their own before they look at them, once a step: ``aggregate_gradients``
or ``_aggregate_gradients``. A ``LossScaleOptimizer`` calls that method of the optimizer that it wraps and looks for
infinities in the result, so that all workers skip the same steps. Here the method reduces over the workers.

With ``backward_passes_per_step`` gradients are added up in variables, and an update is made when there are enough. As
in Horovod, every pass counts as an iteration of the optimizer.
"""

from __future__ import annotations

from typing import Any

from rueda.hvd.keras import family as families
from rueda.hvd.keras.gradients import all_finite, reduce
from rueda.hvd.keras.optimizer import Options, change_class


def distribute(optimizer: Any, options: Options) -> Any:
    """Make an optimizer of tf_keras distributed, in place."""
    families.keep_out_of_xla(families.load(families.TF_KERAS).Model)
    if hasattr(optimizer, "inner_optimizer"):
        distribute(optimizer.inner_optimizer, options)
        return change_class(optimizer, DistributedLossScale, options)
    return change_class(optimizer, Distributed if hasattr(optimizer, "aggregate_gradients") else DistributedV2, options)


class _Common:
    """What distributed optimizers of both kinds share."""

    _hvd: Options

    def register_local_var(self, var: Any) -> None:
        """Leave the gradient of a variable to each worker: it is not reduced."""
        self._hvd.local.add(var.ref())

    def _reduced(self, grads_and_vars: Any) -> list[tuple[Any, Any]]:
        pairs = list(grads_and_vars)
        grads, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        if self._hvd.passes > 1:  # of a LossScaleOptimizer; they are reduced when they are accumulated
            return list(zip(self._poisoned(grads), variables, strict=True))
        return list(zip(reduce(self._hvd, grads, [v.ref() for v in variables]), variables, strict=True))

    def _poisoned(self, grads: list[Any]) -> list[Any]:
        """Return gradients of which the first is NaN if any worker has one that is not finite."""
        import tensorflow as tf

        present = [tf.convert_to_tensor(gradient) for gradient in grads if gradient is not None]
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in present])
        flag = all_finite(self._hvd, tf.cast(finite, tf.float32))
        first = next(number for number, gradient in enumerate(grads) if gradient is not None)
        poison = tf.where(flag > 0.5, 0.0, float("nan"))
        grads[first] = present[0] + tf.cast(poison, present[0].dtype)
        return grads

    def _apply_after_passes(self: Any, grads_and_vars: Any, apply: Any) -> Any:
        """Add up gradients, and apply their sum or average, reduced over the workers, at every n-th call."""
        import tensorflow as tf

        options = self._hvd
        pairs = [(gradient, variable) for gradient, variable in grads_and_vars if gradient is not None]
        variables = [variable for _, variable in pairs]
        keys = [variable.ref() for variable in variables]
        with tf.init_scope():
            if options.sums is None:
                options.sums = {}
                options.num_passes = tf.Variable(0, dtype=tf.int64, trainable=False, name="aggregation_counter")
            for key, variable in zip(keys, variables, strict=True):
                if key not in options.sums:
                    options.sums[key] = tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False)
            self._create_variables(variables)
        sums = [options.sums[key] for key in keys]
        for total, (gradient, _) in zip(sums, pairs, strict=True):
            total.assign_add(tf.cast(tf.convert_to_tensor(gradient), total.dtype))
        passes = options.num_passes.assign_add(1)

        def update() -> Any:
            factor = 1.0 / options.passes if options.average_passes else 1.0
            totals = [tf.convert_to_tensor(total) * factor for total in sums]
            made = reduce(options, totals, keys)
            apply(list(zip(made, variables, strict=True)))
            for total in sums:
                total.assign(tf.zeros_like(total))
            options.num_passes.assign(0)
            return tf.convert_to_tensor(self.iterations)

        return tf.cond(passes >= options.passes, update, lambda: self.iterations.assign_add(1))


class Distributed(_Common):
    """The methods that every distributed optimizer of ``tf_keras.optimizers`` has, apart from the legacy ones."""

    def aggregate_gradients(self, grads_and_vars: Any) -> Any:
        """Reduce the gradients over the workers."""
        return super().aggregate_gradients(self._reduced(grads_and_vars))  # type: ignore[misc]

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Reduce the gradients over the workers and update the variables."""
        plain = super().apply_gradients  # type: ignore[misc]
        if self._hvd.passes == 1:
            return plain(grads_and_vars, *args, **kwargs)
        return self._apply_after_passes(grads_and_vars, lambda made: plain(made, skip_gradients_aggregation=True))

    def _create_variables(self: Any, variables: list[Any]) -> None:
        self.build(variables)


class DistributedV2(_Common):
    """The methods that every distributed optimizer of ``tf_keras.optimizers.legacy`` has."""

    def _aggregate_gradients(self, grads_and_vars: Any) -> Any:
        return super()._aggregate_gradients(self._reduced(grads_and_vars))  # type: ignore[misc]

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Reduce the gradients over the workers and update the variables."""
        plain = super().apply_gradients  # type: ignore[misc]
        if self._hvd.passes == 1:
            return plain(grads_and_vars, *args, **kwargs)
        return self._apply_after_passes(
            grads_and_vars, lambda made: plain(made, experimental_aggregate_gradients=False)
        )

    def _create_variables(self: Any, variables: list[Any]) -> None:
        self.iterations  # noqa: B018  (creates it)
        self._create_hypers()
        self._create_all_weights(variables)


class DistributedLossScale:
    """A loss-scale optimizer around a distributed optimizer, which looks for infinities in the reduced gradients."""

    def register_local_var(self: Any, var: Any) -> None:
        """Leave the gradient of a variable to each worker: it is not reduced."""
        self.inner_optimizer.register_local_var(var)
