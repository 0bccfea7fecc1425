"""Ghost batch normalisation: a large batch normalised as if it were many small ones.

Hoffer, Hubara and Soudry 2017, *Train longer, generalize better* (arXiv 1705.08741), algorithm 1. The noise in
the statistics of a small batch regularises; a large batch loses it. So the batch is cut into ghosts and each ghost
is normalised by its own mean and variance. The running averages that serve at inference take the ghosts as one
update each, in order; the G updates are applied at once, in closed form.

Next to `torch.nn.BatchNorm2d` called on each chunk of the batch, the output, the gradients, the running averages
and `num_batches_tracked` are the same; the chunks are not copied apart and together again.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from rueda.errors import RecipeError
from rueda.nn.ghost_kernels import normalise_ghosts
from rueda.nn.ghosts import chained_average, cumulative_average, ghost_sizes


class GhostBatchNorm(nn.modules.batchnorm._BatchNorm):
    """What the three classes share; use `GhostBatchNorm1d`, `2d` or `3d`.

    The arguments and the `state_dict` are those of `torch.nn.BatchNorm2d`, and in `eval` mode it is one. In training:

    - A batch that the ghost size does not divide ends with a smaller ghost, which counts as one update like the
      others. A remainder of one value per channel (no variance) joins the ghost before it.
    - A batch of at most one ghost is normalised as by `torch.nn.BatchNorm2d`.
    - `momentum=None` averages over all ghosts ever seen.

    Args:
        num_features: channels.
        ghost_batch: examples per ghost.
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
        """Take each ghost's mean and unbiased variance into the running averages."""
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None
        unbiased = variance * variance.new_tensor([n / (n - 1) for n in counts]).unsqueeze(1)
        for running, observed in ((self.running_mean, mean), (self.running_var, unbiased)):
            if self.momentum is None:
                running.copy_(cumulative_average(running, observed, self.num_batches_tracked))
            else:
                running.copy_(chained_average(running, observed, self.momentum))
        self.num_batches_tracked.add_(len(counts))

    def extra_repr(self) -> str:
        """Say the ghost size where the layer is printed."""
        options = super().extra_repr()  # type: ignore[no-untyped-call]
        return f"{options}, ghost_batch={self.ghost_batch}"


class GhostBatchNorm1d(GhostBatchNorm, nn.BatchNorm1d):
    """Ghost batch norm of [N, C] or [N, C, L]; see `GhostBatchNorm`."""


class GhostBatchNorm2d(GhostBatchNorm, nn.BatchNorm2d):
    """Ghost batch norm of [N, C, H, W]; see `GhostBatchNorm`."""


class GhostBatchNorm3d(GhostBatchNorm, nn.BatchNorm3d):
    """Ghost batch norm of [N, C, D, H, W]; see `GhostBatchNorm`."""


def checked_ghost_batch(ghost_batch: object) -> int:
    """Return a ghost size, or refuse it: one example alone has no variance.

    >>> checked_ghost_batch(32)
    32
    """
    if isinstance(ghost_batch, bool) or not isinstance(ghost_batch, int) or ghost_batch < 2:
        raise RecipeError("ghost_batch", expected="a whole number of at least 2", got=ghost_batch, do="use 16 to 128")
    return ghost_batch
