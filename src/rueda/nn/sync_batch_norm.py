"""Batch normalisation over the global batch of all workers, on any device, also for local batches of different sizes.

Worker k holds n_k values per channel with mean mu_k and sum of squared deviations q_k. The global batch has

    n = sum n_k      mu = sum n_k mu_k / n      q = sum (q_k + n_k (mu_k - mu)^2)      v = q / n

so one all-gather of (n_k, mu_k, q_k) makes the forward pass exact (Chan, Golub and LeVeque 1979), and one all-reduce of
(sum dy, sum dy i (x - mu)) makes the backward pass exact:

    dx = w i (dy - db/n - i (x - mu) dw/n),   i = 1/sqrt(v + eps),   db and dw summed over all workers

The gradients of weight and bias that the layer returns are local; they are averaged over the workers like all other
gradients. `torch.nn.SyncBatchNorm` does the same on GPUs, but rejects CPU tensors, and each of its forward passes waits
for the device to tell which workers had an empty batch. Here an empty batch has the weight 0, and nothing waits.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rueda.errors import DataError, RecipeError
from rueda.nn.convert import BatchNorm, converted_to, replace_batch_norm
from rueda.nn.ghost_batch_norm import GhostBatchNorm
from rueda.world import current


def to_sync_batch_norm(model: nn.Module, process_group: dist.ProcessGroup | None = None) -> nn.Module:
    """Replace every batch-norm layer of `model` by one that normalises over the global batch.

    Parameters, buffers, names, options, hooks and mode are kept, as in `rueda.nn.apply_ghost_batch_norm`. A layer that
    is synchronised already gets the new process group. For a ghost batch norm an error is raised, since its statistics
    are those of each ghost.

    Args:
        model: it is changed in place; a model that is itself a batch-norm layer is replaced.
        process_group: the workers that share statistics; by default all of them (`rueda.world.current()`).

    Returns:
        The model, or its replacement if it is itself a batch-norm layer.

    >>> to_sync_batch_norm(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))[1]
    SyncBatchNorm(8, eps=1e-05, momentum=0.1, ...)
    """

    def shared(layer: BatchNorm) -> nn.Module:
        if isinstance(layer, GhostBatchNorm):
            raise RecipeError(
                f"to_sync_batch_norm on {type(layer).__name__}",
                expected="BatchNorm1d, 2d or 3d",
                got="ghosts, which keep their statistics apart",
                do="convert the model to one of the two",
            )
        return converted_to(layer, SyncBatchNorm, process_group=process_group)

    return replace_batch_norm(model, shared)


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm of [N, C, ...] over the global batch; on one worker, and in evaluation, plain batch norm.

    `to_sync_batch_norm` creates it. In training its forward and backward passes are collectives: every worker must make
    the same number of them, but may have any number of examples, even none.

    Args:
        num_features: the number of channels C.
        eps: added to the variance.
        momentum: weight of a batch in the running averages; None averages all batches equally.
        affine: learn a weight and a bias for each channel.
        track_running_stats: keep the running averages, which evaluation uses.
        device: where the parameters are made.
        dtype: the type of the parameters.
        bias: learn a bias as well, with ``affine``.
    """

    process_group: dist.ProcessGroup | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise by the statistics of the global batch in training, by the running averages in evaluation."""
        self._check_input_dim(x)
        if not self.training or self._communicator().size == 1:
            return super().forward(x)
        y, count, mean, variance = _Joined.apply(x, self.weight, self.bias, self.eps, self._communicator())  # type: ignore[no-untyped-call]
        if self.track_running_stats:
            self._observe(mean, variance * (count / (count - 1)))
        return y  # type: ignore[no-any-return]

    def _communicator(self) -> Any:
        """Return an object with ``size``, ``all_gather`` and ``all_reduce`` for the workers that share statistics."""
        return current() if self.process_group is None else _GroupCollectives(self.process_group)

    def _observe(self, mean: Tensor, unbiased_variance: Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        weight: float | Tensor = 1.0 / self.num_batches_tracked if self.momentum is None else self.momentum
        for running, observed in ((self.running_mean, mean), (self.running_var, unbiased_variance)):
            running.add_((observed.to(running.dtype) - running) * weight)

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 2:
            raise DataError("SyncBatchNorm", expected="[N, C, ...]", got=tuple(x.shape), do="keep the batch dimension")


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        communicator: Any,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        count, mean, squares = _local_moments(x)
        packed = torch.cat([count.view(1), mean, squares])
        gathered = torch.stack(communicator.all_gather(packed))
        counts, means, all_squares = gathered.split([1, len(mean), len(mean)], dim=1)  # type: ignore[no-untyped-call]
        total = counts.sum()
        # Only a worker with fewer than two values reads the sum, which waits for the device.
        if x.numel() // x.shape[1] < 2 and total < 2:
            raise DataError(
                "SyncBatchNorm", expected="at least 2 values per channel", got=int(total), do="enlarge the batch"
            )
        mean = (counts * means).sum(0) / total
        variance = (all_squares + counts * (means - mean).square()).sum(0) / total
        inverse = torch.rsqrt(variance + eps)
        scale = inverse if weight is None else inverse * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        y = torch.addcmul(_beside(shift, x), x.to(scale.dtype), _beside(scale, x)).to(x.dtype)
        ctx.save_for_backward(x, weight, mean, inverse, total)
        ctx.has_bias, ctx.communicator = bias is not None, communicator
        ctx.mark_non_differentiable(total, mean, variance)
        return y, total, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, *unused: object) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse, total = ctx.saved_tensors
        values, dy = x.to(mean.dtype), dy.to(mean.dtype)
        over = [0, *range(2, x.dim())]
        db = dy.sum(over)
        dw = (dy * (values - _beside(mean, x))).sum(over) * inverse
        all_db, all_dw = ctx.communicator.all_reduce(torch.stack([db, dw]))
        a = inverse if weight is None else inverse * weight
        b = -a * inverse * all_dw / total
        c = -a * all_db / total - b * mean
        dx = torch.addcmul(_beside(c, x), dy, _beside(a, x)).addcmul_(values, _beside(b, x)).to(x.dtype)
        return dx, None if weight is None else dw.to(weight.dtype), db if ctx.has_bias else None, None, None


def _local_moments(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return this worker's number of values per channel, their mean and their sum of squared deviations."""
    values = x.to(torch.promote_types(x.dtype, torch.float32))
    count = x.numel() // x.shape[1]
    if count == 0:
        mean = variance = values.new_zeros(x.shape[1])
    elif x.device.type == "cpu":  # var_mean is 20 times slower here than batch norm's own kernel
        mean, variance = torch.ops.aten.batch_norm_update_stats(values, None, None, 0.0)
    else:
        variance, mean = torch.var_mean(values, [0, *range(2, x.dim())], correction=0)
    return values.new_full((), float(count)), mean, variance * count


def _beside(per_channel: Tensor, x: Tensor) -> Tensor:
    """Reshape [C] so that it broadcasts against [N, C, ...]."""
    return per_channel.view(1, -1, *[1] * (x.dim() - 2))


class _GroupCollectives:
    """The collectives of a process group, with the same interface as those of :class:`rueda.world.World`."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.size = dist.get_world_size(group)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor, group=self._group)
        return parts

    def all_reduce(self, tensor: Tensor) -> Tensor:
        dist.all_reduce(tensor, group=self._group)
        return tensor
