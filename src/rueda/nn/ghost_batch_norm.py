"""Ghost batch normalisation: a large batch normalised as if it were many small ones.

Hoffer, Hubara and Soudry 2017, *Train longer, generalize better* (arXiv 1705.08741), algorithm 1. The noise in
the statistics of a small batch regularises the training; a large batch has less of it. So the batch is split into ghost
batches (*ghosts*), and each is normalised by its own mean and variance. The ghosts update the running averages, which
are used in evaluation, one after another; the updates of a step are applied at once, in closed form.

The output, the gradients, the running averages and `num_batches_tracked` equal those of `torch.nn.BatchNorm2d` called
on one ghost after another, but no ghost is copied.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from rueda.nn.ghost_kernels import is_transformed, normalise_ghosts
from rueda.nn.ghost_sizes import checked_ghost_batch, ghost_sizes
from rueda.nn.ghosts import chain_average_, chain_weights, cumulative_average, unbiased


class GhostBatchNorm(nn.modules.batchnorm._BatchNorm):
    """The base class of `GhostBatchNorm1d`, `2d` and `3d`.

    The arguments and the `state_dict` are those of `torch.nn.BatchNorm2d`, and so is the output in `eval` mode. In
    training:

    - A batch that the ghost size does not divide ends with a smaller ghost, which counts as one update like the
      others. A remainder of one value per channel (no variance) joins the ghost before it.
    - A batch of at most one ghost is normalised as by `torch.nn.BatchNorm2d`.
    - With `momentum=None` the running averages are plain means over all ghosts ever seen.

    Args:
        num_features: number of channels.
        ghost_batch: number of examples per ghost.
        **options: `eps`, `momentum`, `affine`, `track_running_stats`, `device`, `dtype`, as in torch.

    >>> import torch
    >>> layer = GhostBatchNorm1d(1, ghost_batch=2)
    >>> layer(torch.tensor([[0.0], [2.0], [10.0], [30.0]])).detach().round(decimals=2).flatten()
    tensor([-1.,  1., -1.,  1.])
    >>> layer.running_mean, int(layer.num_batches_tracked)  # 0.9 (0.9 * 0 + 0.1 * 1) + 0.1 * 20
    (tensor([2.0900]), 2)
    """

    def __init__(self, num_features: int, *, ghost_batch: int, **options: Any) -> None:
        super().__init__(num_features, **options)
        self.ghost_batch = checked_ghost_batch(ghost_batch)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [N, C, ...] ghost by ghost in training, by the running averages in evaluation."""
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        values_per_example = x[0, 0].numel() if x.numel() else 0
        sizes = ghost_sizes(x.shape[0], self.ghost_batch, values_per_example)
        if not self.training or len(sizes) < 2:
            return super().forward(x)
        y, mean, variance = normalise_ghosts(x, self.weight, self.bias, sizes, self.eps)
        if self.track_running_stats:
            self._observe(mean, variance, [size * values_per_example for size in sizes])
        return y

    def _observe(self, mean: Tensor, variance: Tensor, counts: list[int]) -> None:
        """Update the running averages with each ghost's mean and unbiased variance."""
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None
        if self.momentum is None:
            for running, observed in ((self.running_mean, mean), (self.running_var, unbiased(variance, counts))):
                running.copy_(cumulative_average(running, observed, self.num_batches_tracked))
        else:
            of_means, of_variances = self._weights(mean, counts, self.momentum)
            chain_average_(self.running_mean, mean, of_means, self.momentum)
            chain_average_(self.running_var, variance, of_variances, self.momentum)
        self.num_batches_tracked.add_(len(counts))

    def _weights(self, mean: Tensor, counts: list[int], momentum: float) -> tuple[Tensor, Tensor]:
        """Return the factors of the ghosts' means and biased variances in the running averages, [G] each.

        They are kept for the next batch, since on a GPU they would take as many kernels as the normalisation.
        """
        key = (counts[0], counts[-1], len(counts), momentum, mean.device, mean.dtype)
        kept = self.__dict__.get("_kept_weights")
        if kept is None or kept[0] != key or is_transformed():
            weights = chain_weights(mean, momentum)
            kept = key, (weights, unbiased(weights.unsqueeze(1), counts).squeeze(1))
            if not is_transformed():
                self.__dict__["_kept_weights"] = kept
        found: tuple[Tensor, Tensor] = kept[1]
        return found

    def extra_repr(self) -> str:
        """Add the ghost size to the layer's representation."""
        options = super().extra_repr()  # type: ignore[no-untyped-call]
        return f"{options}, ghost_batch={self.ghost_batch}"


class GhostBatchNorm1d(GhostBatchNorm, nn.BatchNorm1d):
    """Ghost batch norm of [N, C] or [N, C, L]; see `GhostBatchNorm`.

    Args:
        num_features: the number of channels C.
        ghost_batch: examples per ghost, at least 2.
        options: those of `torch.nn.BatchNorm1d`.
    """


class GhostBatchNorm2d(GhostBatchNorm, nn.BatchNorm2d):
    """Ghost batch norm of [N, C, H, W]; see `GhostBatchNorm`.

    Args:
        num_features: the number of channels C.
        ghost_batch: examples per ghost, at least 2.
        options: those of `torch.nn.BatchNorm2d`.
    """


class GhostBatchNorm3d(GhostBatchNorm, nn.BatchNorm3d):
    """Ghost batch norm of [N, C, D, H, W]; see `GhostBatchNorm`.

    Args:
        num_features: the number of channels C.
        ghost_batch: examples per ghost, at least 2.
        options: those of `torch.nn.BatchNorm3d`.
    """
