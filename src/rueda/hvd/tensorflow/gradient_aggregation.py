"""Local gradient aggregation: gradients of several backward passes are summed before they are exchanged once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rueda.hvd.bridge.tensorflow import tf
from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.tensorflow.gradients import divided
from rueda.hvd.tensorflow.mpi_ops import number_of_workers


class LocalGradientAggregationHelper:
    """Sums gradients over backward passes and exchanges the sum: in eager mode, a ``tf.function`` or a session's graph.

    Args:
        backward_passes_per_step: after how many passes gradients are exchanged and applied.
        allreduce_func: takes the lists of gradients and variables and returns the reduced gradients.
        sparse_as_dense: accepted for compatibility with Horovod: sums are always dense.
        average_aggregated_gradients: divide the sums by the number of passes.
        rank: accepted for compatibility with Horovod.
        optimizer_type: likewise.
        process_set: the ranks that take part.
        scale_local_gradients: divide the gradients of local variables by the number of ranks.
        name: the beginning of the names of the variables that hold the sums.
    """

    _OPTIMIZER_TYPE_KERAS, _OPTIMIZER_TYPE_LEGACY = "optimizer_type_keras", "optimizer_type_legacy"

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]],
        sparse_as_dense: bool = False,
        average_aggregated_gradients: bool = False,
        rank: int = 0,
        optimizer_type: str = _OPTIMIZER_TYPE_LEGACY,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        if backward_passes_per_step < 1:
            raise ValueError(f"backward_passes_per_step: expected 1 or more, got {backward_passes_per_step}")
        self.backward_passes_per_step = backward_passes_per_step
        self.average_aggregated_gradients = average_aggregated_gradients
        self.process_set, self.scale_local_gradients = process_set, scale_local_gradients
        self._allreduce = allreduce_func
        self._local: dict[int, Any] = {}
        self._sums: list[Any] = []
        self._name = name
        with tf.init_scope():
            self.counter = self._variable(0, "passes_since_exchange")

    def register_local_var(self, var: Any) -> None:
        """Leave the gradient of a variable out of the exchange."""
        self._local[id(var)] = var

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Add gradients to the sums; return the reduced sums at every n-th call and the sums so far at the others."""
        grads, variables = list(grads), list(vars)
        if self.backward_passes_per_step == 1:
            return self._reduced(grads, variables)
        if not self._sums:
            with tf.init_scope():
                self._sums = [
                    None if grad is None else self._variable(tf.zeros(variable.shape, grad.dtype), f"sum_{index}")
                    for index, (grad, variable) in enumerate(zip(grads, variables, strict=True))
                ]
        added = [
            total.assign_add(tf.convert_to_tensor(grad))
            for total, grad in zip(self._sums, grads, strict=True)
            if total is not None and grad is not None
        ]
        used = [total for total in self._sums if total is not None]
        owners = [variable for total, variable in zip(self._sums, variables, strict=True) if total is not None]

        def exchange() -> list[Any]:
            factor = 1 / self.backward_passes_per_step if self.average_aggregated_gradients else 1.0
            reduced = self._reduced([total.read_value() * tf.cast(factor, total.dtype) for total in used], owners)
            with _after(reduced):
                cleared = [self.counter.assign(0), *(total.assign(tf.zeros_like(total)) for total in used)]
            with _after(cleared):
                return [tf.identity(gradient) for gradient in reduced]

        with _after([*added, self.counter.assign_add(1)]):
            is_time = tf.equal(self.counter.read_value(), self.backward_passes_per_step)
        found = tf.cond(is_time, exchange, lambda: [total.read_value() for total in used])
        results = iter(found if isinstance(found, (list, tuple)) else [found])  # a graph returns one alone
        return [None if total is None else next(results) for total in self._sums]

    def apply_gradients(self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the closure, which applies gradients, if they have just been exchanged.

        Args:
            apply_grads_closure: applies the gradients.
            optimizer: its iterations are counted at every pass, as in Horovod.
            args: first the pairs of a gradient and a variable, which the closure applies; the rest is ignored.
            kwargs: ``global_step``, a variable that is counted at every pass; the rest is ignored.
        """
        gradients = [grad for grad, _ in args[0] if grad is not None] if args else []

        def apply() -> Any:
            with _after([apply_grads_closure()]):
                return tf.constant(True)

        def count() -> Any:
            counters = [getattr(optimizer, "iterations", None), kwargs.get("global_step")]
            with _after([one.assign(one + tf.ones([], one.dtype)) for one in counters if one is not None]):
                return tf.constant(False)

        with _after(gradients):
            is_time = tf.equal(self.counter.read_value(), 0)
        return tf.cond(is_time, apply, count)

    def _variable(self, value: Any, name: str) -> Any:
        """Make a variable that TensorFlow 1 neither saves nor broadcasts: it belongs to this worker and run."""
        local = [tf.compat.v1.GraphKeys.LOCAL_VARIABLES]
        return tf.compat.v1.Variable(
            value, trainable=False, collections=local, name=f"{self._name}{name}", use_resource=True
        )

    def _reduced(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        results, sent = list(grads), []
        for index, (grad, variable) in enumerate(zip(grads, variables, strict=True)):
            if id(variable) not in self._local:
                sent.append(index)
            elif grad is not None and self.scale_local_gradients:
                results[index] = divided(grad, number_of_workers(self.process_set))
        reduced = self._allreduce([grads[index] for index in sent], [variables[index] for index in sent])
        for index, grad in zip(sent, reduced, strict=True):
            results[index] = grad
        return results


def _after(made: Sequence[Any]) -> Any:
    """Return a context whose operations run after others: a graph of TensorFlow 1 orders nothing by itself."""
    present = [one for one in made if one is not None]
    return tf.control_dependencies([] if tf.executing_eagerly() or not present else [tf.group(*present)])
