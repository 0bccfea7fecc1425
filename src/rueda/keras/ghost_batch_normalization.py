"""Ghost batch normalisation as a Keras layer; :mod:`rueda.nn.ghost_batch_norm` has the method and the reference.

A ghost is a row of b examples. Sums are taken over each example first, [N, C]; these are padded to whole rows, [R, b,
C], and summed over each row, [R, C]. So the large tensor is never split or copied, and the number of examples may be
unknown until the step runs, as it is in a ``tf.function``. For the rows with n values per channel each::

    mu = sum x / n      v = sum (x - mu)^2 / n      y = gamma (x - mu) / sqrt(v + epsilon) + beta
"""

from __future__ import annotations

from typing import Any

from rueda.errors import RecipeError
from rueda.keras.framework import keras, precise
from rueda.nn.ghost_sizes import checked_ghost_batch

ops = keras.ops


@keras.saving.register_keras_serializable(package="rueda")
class GhostBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """Batch normalisation that computes its statistics over ghosts, small parts of the batch.

    Output, gradients and moving statistics equal those of :class:`rueda.nn.GhostBatchNorm2d` (whose ``momentum`` is 1
    minus Keras's, whose ``eps`` is 1e-5 by default). In inference it is ``keras.layers.BatchNormalization``. In
    training:

    - A batch that the ghost size does not divide ends with a smaller ghost. A remainder of one value per channel (no
      variance) joins the ghost before it.
    - Each ghost updates the moving statistics once, in order; all updates of a step are applied at once.
    - The moving variance receives unbiased variances, as in torch; Keras's own layer takes biased ones.
    - Values that a ``mask`` leaves out do not count.

    Args:
        ghost_batch: number of examples per ghost.
        **options: those of ``keras.layers.BatchNormalization``, except ``renorm`` and ``synchronized``.
    """

    def __init__(self, ghost_batch: int, **options: Any) -> None:
        for name in ("renorm", "synchronized"):
            if options.get(name):
                raise RecipeError(name, expected="False with ghosts", got=True, do="use BatchNormalization instead")
        super().__init__(**options)
        self.ghost_batch = checked_ghost_batch(ghost_batch)

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Normalise ghost by ghost in training, by the moving statistics in inference.

        Args:
            inputs: a batch, with the channels in ``axis``.
            training: whether this is a training step, as Keras passes it.
            mask: values that are False do not count for the statistics.
        """
        if not (training and self.trainable):
            return super().call(inputs, training=training, mask=mask)
        x = ops.cast(inputs, precise(inputs.dtype))
        rows = _Rows(x, self.ghost_batch, self.axis, mask)
        mean, variance, counts = rows.moments()
        self._observe(ops.stop_gradient(mean), ops.stop_gradient(variance), counts, rows.num_ghosts)
        scale = ops.rsqrt(variance + self.epsilon)  # [R, C], as mean and variance
        if self.scale:
            scale = scale * ops.cast(self.gamma, x.dtype)
        shift = -mean * scale
        if self.center:
            shift = shift + ops.cast(self.beta, x.dtype)
        return ops.cast(x * rows.spread(scale) + rows.spread(shift), self.compute_dtype)

    def _observe(self, mean: Any, variance: Any, counts: Any, num_ghosts: Any) -> None:
        """Update the moving statistics: r_G = m^G r_0 + (1-m) sum_g m^(G-1-g) s_g over the ghosts g = 0..G-1."""
        later = ops.cast(num_ghosts - 1 - ops.arange(ops.shape(mean)[0]), mean.dtype)
        weights = ops.where(later >= 0, (1.0 - self.momentum) * self.momentum ** ops.relu(later), 0.0)
        kept = self.momentum ** ops.cast(num_ghosts, mean.dtype)
        unbiased = variance * counts / _at_least_one(counts - 1.0)
        for moving, observed in ((self.moving_mean, mean), (self.moving_variance, unbiased)):
            new = kept * ops.cast(moving, mean.dtype) + ops.sum(weights[:, None] * observed, axis=0)
            moving.assign(ops.cast(new, moving.dtype))

    def get_config(self) -> dict[str, Any]:
        """Return all arguments."""
        return {**super().get_config(), "ghost_batch": self.ghost_batch}


class _Rows:
    """The ghosts of one batch.

    Args:
        x: the batch, [N, ...], in float32 or float64.
        ghost_batch: examples in a ghost.
        axis: the axis of the channels.
        mask: which values count, [N, ...] without the channels, or None.
    """

    def __init__(self, x: Any, ghost_batch: int, axis: int, mask: Any) -> None:
        self.x, self.size = x, ghost_batch
        shape, axis = ops.shape(x), axis % len(x.shape)
        self.num_examples, self.num_channels = shape[0], shape[axis]
        self.wide = [self.num_channels if each == axis else 1 for each in range(1, len(shape))]
        self.over = [each for each in range(1, len(shape)) if each != axis]
        self.num_rows = (self.num_examples + ghost_batch - 1) // ghost_batch
        per_example: Any = 1
        for each in self.over:
            per_example = per_example * shape[each]
        self.mask = None if mask is None else ops.cast(ops.expand_dims(mask, axis), x.dtype)
        # A row of a single value joins the one before it. That can only be where an example has one value per channel.
        self.joins: Any = None
        if not (isinstance(per_example, int) and per_example > 1):
            alone = ops.equal(self.num_examples % ghost_batch * per_example, 1)
            self.joins = ops.cast(ops.logical_and(alone, ops.greater(self.num_examples, ghost_batch)), "int32")
        self.num_ghosts = self.num_rows if self.joins is None else self.num_rows - self.joins
        number = ops.ones((self.num_examples, 1), x.dtype) * ops.cast(per_example, x.dtype)
        if self.mask is not None:
            number = self._per_example(ops.ones_like(ops.take(x, [0], axis=axis)))
        self.counts = _at_least_one(self._sum(number))  # [R, 1]

    def moments(self) -> tuple[Any, Any, Any]:
        """Return mean and biased variance of each row, [R, C], and the values per channel, [R, 1]."""
        mean = self._sum(self._per_example(self.x)) / self.counts
        variance = self._sum(self._per_example(ops.square(self.x - self.spread(mean)))) / self.counts
        return mean, variance, self.counts

    def spread(self, rows: Any) -> Any:
        """Give each example the numbers of its row: from [R, C] to [N, ..., C, ...]."""
        wide = ops.broadcast_to(rows[:, None, :], (self.num_rows, self.size, self.num_channels))
        lines = ops.reshape(wide, (self.num_rows * self.size, self.num_channels))[: self.num_examples]
        return ops.reshape(lines, (self.num_examples, *self.wide))

    def _per_example(self, x: Any) -> Any:
        x = x if self.mask is None else x * self.mask
        return ops.sum(x, axis=self.over) if self.over else x

    def _sum(self, lines: Any) -> Any:
        """Sum numbers of examples, [N, C], over each row, [R, C]."""
        width = lines.shape[1]
        padding = ops.zeros((self.num_rows * self.size - self.num_examples, width), lines.dtype)
        padded = ops.reshape(ops.concatenate([lines, padding], axis=0), (self.num_rows, self.size, width))
        sums = ops.sum(padded, axis=1)
        return sums if self.joins is None else self._joined(sums)

    def _joined(self, sums: Any) -> Any:
        """Give the last two rows their common sum, if the last one joins the one before it."""
        nothing = ops.zeros_like(sums[:1])
        number = ops.arange(self.num_rows)[:, None]
        joins = ops.cast(self.joins, sums.dtype)
        takes_next = ops.cast(number == self.num_rows - 2, sums.dtype) * joins
        takes_last = ops.cast(number == self.num_rows - 1, sums.dtype) * joins
        after, before = ops.concatenate([sums[1:], nothing], 0), ops.concatenate([nothing, sums[:-1]], 0)
        return sums + takes_next * after + takes_last * before


def _at_least_one(counts: Any) -> Any:
    return ops.where(counts > 1, counts, ops.ones_like(counts))
