"""Ghost batch norm on the CPU: a few ghosts at a time are processed in the cache and written into one output.

See `rueda.nn.ghost_kernels` for the formulas and for the choice between the two implementations here, *rows* and
*native*.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_aten = torch.ops.aten
_WIDEST_ROW = 65_536  # columns: a row of float32 coefficients takes 256 KiB and stays in the second-level cache
_GROUP_BYTES = 32 << 20  # ghosts that are processed together: few long operations that fit in a large cache
_BLOCK_BYTES = 512 << 10  # stays in the second-level cache (1 to 2 MiB) between two operations on it
_ROW = 2048  # columns to aim for in channels-last memory: shorter rows have too much loop overhead


def forward_rows(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, sizes: list[int], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise by rows; return y, and each ghost's mean and biased variance, [G, C]."""
    y = torch.empty_like(x)
    means = x.new_empty(len(sizes), x.shape[1])
    variances = torch.empty_like(means)
    for ghosts, layout in _groups(x, sizes):
        found = [_aten.batch_norm_update_stats(each, None, None, 0.0) for each in layout.columns(x)]
        mean, variance = layout.pooled(*(torch.stack(each) for each in zip(*found, strict=True)))
        scale = torch.rsqrt(variance + eps)  # [k, C], as all coefficients here
        if weight is not None:
            scale *= weight
        shift = torch.mul(mean, scale).neg_() if bias is None else torch.addcmul(bias, mean, scale, value=-1)
        torch.addcmul(layout.spread(shift), layout.rows(x), layout.spread(scale), out=layout.rows(y))
        means[ghosts] = mean
        variances[ghosts] = variance
    return y, means, variances


def backward_rows(
    dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, inverse: Tensor, sizes: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dx, dw and db, computed by rows."""
    dx = torch.empty_like(x)
    sums = mean.new_empty(2, *mean.shape)
    for ghosts, layout in _groups(x, sizes):
        mu, i, dw, db = mean[ghosts], inverse[ghosts], sums[0, ghosts], sums[1, ghosts]
        found = [
            _aten.native_batch_norm_backward(*each, True, 0.0, [False, True, True])[1:]
            for each in zip(layout.images(dy), layout.images(x), *[[None] * len(mu)] * 3, mu, i, strict=True)
        ]
        for each, out in zip(zip(*found, strict=True), (dw, db), strict=True):
            torch.stack(each, out=out)
        a = i if weight is None else i * weight
        b = (i * dw).div_(-layout.num_values)
        c = (db / -layout.num_values).addcmul_(b, mu, value=-1).mul_(a)
        coefficients = (layout.block_rows(each) for each in (a, b, c))
        for dyb, xb, dxb, ab, bb, cb in zip(*map(layout.blocks, (dy, x, dx)), *coefficients, strict=True):
            torch.addcmul(dyb, xb, bb, out=dxb)
            torch.addcmul(cb, dxb, ab, out=dxb)  # the block is still in the cache
    return dx, *sums.sum(1)


def has_rows(x: Tensor) -> bool:
    """Return whether *rows* can be used: full precision, and a row of coefficients fits in the cache."""
    if x.dtype not in (torch.float32, torch.float64):
        return False
    return is_channels_last(x) or x[0].numel() <= _WIDEST_ROW


def is_channels_last(x: Tensor) -> bool:
    """Return whether the channels are adjacent in memory, for any number of dimensions."""
    return x.movedim(1, -1).is_contiguous()


def _groups(x: Tensor, sizes: list[int]) -> Iterator[tuple[slice, _Layout]]:
    """Yield groups of adjacent ghosts of one size that fit in the cache together, for fewer but longer operations."""
    bytes_per_example = max(1, x[0].numel() * x.element_size())
    ghost = example = 0
    while ghost < len(sizes):
        size = sizes[ghost]
        most = max(1, _GROUP_BYTES // (size * bytes_per_example))
        num_ghosts = 1
        while num_ghosts < most and sizes[ghost + num_ghosts : ghost + num_ghosts + 1] == [size]:
            num_ghosts += 1
        yield slice(ghost, ghost + num_ghosts), _Layout(x, example, size, num_ghosts)
        ghost += num_ghosts
        example += num_ghosts * size


def _power_of_two(divides: int, at_most: int) -> int:
    """Return the largest power of two that divides ``divides`` and is at most ``at_most``; at least 1."""
    return min(divides & -divides, 1 << (max(1, at_most).bit_length() - 1))


class _Layout:
    """The views of k adjacent ghosts of b examples each that the kernels use; nothing is copied.

    With P pixels per example and r pixels per row:

    ========  ========================  ==================
    view      channels-last memory      contiguous memory
    ========  ========================  ==================
    rows      [k, b P / r, r C]         [k, b, C P]
    columns   k x [1, r C, b P / r, 1]  k x [1, C P, b, 1]
    images    k x [1, C, b P, 1]        k x [b, C, ...]
    ========  ========================  ==================

    *columns* are the input of torch's kernel for mean and variance, which takes 12 ms for 32 MiB of contiguous images
    but 3 ms for channels-last ones. So every column of `rows` is presented to it as a channel of a channels-last image.
    """

    def __init__(self, x: Tensor, start: int, size: int, num_ghosts: int) -> None:
        self.channels_last = is_channels_last(x)
        self.num_ghosts, self.size = num_ghosts, size
        self.examples = slice(start, start + size * num_ghosts)
        self.num_channels, self.num_pixels = x.shape[1], x[0, 0].numel()
        self.num_values = size * self.num_pixels
        self.repeats = _power_of_two(self.num_values, _ROW // self.num_channels)
        num_rows = self.num_values // self.repeats if self.channels_last else size
        self.num_blocks = _power_of_two(num_rows, size * x[0].numel() * x.element_size() // _BLOCK_BYTES)

    def rows(self, x: Tensor) -> Tensor:
        """View the ghosts as matrices in which each column belongs to one channel."""
        part = x[self.examples]
        if self.channels_last:
            return part.movedim(1, -1).reshape(self.num_ghosts, -1, self.repeats * self.num_channels)
        return part.view(self.num_ghosts, self.size, -1)

    def spread(self, coefficients: Tensor) -> Tensor:
        """Repeat coefficients [k, C] so that there is one for each column, [k, 1, columns]."""
        if self.channels_last:
            wide = coefficients.unsqueeze(1).expand(-1, self.repeats, -1)
        else:
            wide = coefficients.unsqueeze(2).expand(-1, -1, self.num_pixels)
        return wide.reshape(self.num_ghosts, 1, -1)

    def blocks(self, x: Tensor) -> tuple[Tensor, ...]:
        """Split the rows of each ghost into equal blocks that fit in the cache, if the number of rows allows it."""
        rows = self.rows(x)
        return rows.view(self.num_ghosts * self.num_blocks, -1, rows.shape[2]).unbind()

    def block_rows(self, coefficients: Tensor) -> list[Tensor]:
        """Return a row of coefficients for each block, from [k, C]."""
        return [each for each in self.spread(coefficients).unbind() for _ in range(self.num_blocks)]

    def columns(self, x: Tensor) -> tuple[Tensor, ...]:
        """View each ghost as a channels-last image with one channel per column of its rows."""
        rows = self.rows(x)
        return rows.view(self.num_ghosts, 1, rows.shape[1], 1, rows.shape[2]).permute(0, 1, 4, 2, 3).unbind()

    def images(self, x: Tensor) -> tuple[Tensor, ...]:
        """View each ghost as a batch of images in a layout for which torch has a fast kernel."""
        part = x[self.examples]
        if self.channels_last:
            pixels = part.movedim(1, -1).reshape(self.num_ghosts, 1, self.num_values, 1, self.num_channels)
            return pixels.permute(0, 1, 4, 2, 3).unbind()
        return part.view(self.num_ghosts, self.size, *x.shape[1:]).unbind()

    def pooled(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Combine the means and variances of columns, [k, columns], into those of channels, [k, C].

        v = mean of the columns' variances + variance of the columns' means

        is exact, has no cancellation, and rounds less than one long sum per channel.
        """
        over = 1 if self.channels_last else 2
        shape = (self.repeats, self.num_channels) if self.channels_last else (self.num_channels, self.num_pixels)
        mean = mean.view(self.num_ghosts, *shape)
        pooled = mean.mean(over)
        spread = mean.sub_(pooled.unsqueeze(over)).square_()
        return pooled, spread.add_(variance.view_as(spread)).mean(over)


def forward_native(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, sizes: list[int], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise with torch's kernel, ghost by ghost; the statistics are kept in float32 or better."""
    y = torch.empty_like(x)
    precise = torch.promote_types(x.dtype, torch.float32)
    means = torch.zeros(len(sizes), x.shape[1], dtype=precise)
    variances = torch.zeros_like(means)
    ignored = torch.empty_like(means)
    parts = zip(torch.split(x, sizes), torch.split(y, sizes), means, variances, ignored, strict=True)
    for xg, yg, mean, variance, scratch in parts:
        # With momentum 1 the running statistics become those of this ghost, which the kernel does not return otherwise.
        # With weights of low precision it would keep them in that precision, hence the conversion.
        w, b = (None if each is None else each.to(precise) for each in (weight, bias))
        save_mean = torch.empty_like(scratch)
        _aten.native_batch_norm.out(
            xg, w, b, mean, variance, True, 1.0, eps, out=yg, save_mean=save_mean, save_invstd=scratch
        )
        n = xg.numel() // xg.shape[1]
        variance.mul_((n - 1) / n)
    return y, means, variances


def backward_native(
    dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, inverse: Tensor, sizes: list[int], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dx, dw and db, computed with torch's kernel."""
    dx = torch.empty_like(x)
    dw, db = torch.empty_like(mean), torch.empty_like(mean)
    w = None if weight is None else weight.to(mean.dtype)
    parts = zip(torch.split(dy, sizes), torch.split(x, sizes), torch.split(dx, sizes), strict=True)
    for g, (dyg, xg, dxg) in enumerate(parts):
        grad, dw[g], db[g] = _aten.native_batch_norm_backward(
            dyg, xg, w, mean[g], inverse[g], mean[g], inverse[g], True, eps, [True, True, True]
        )
        dxg.copy_(grad)
    kind = mean.dtype if weight is None else weight.dtype
    return dx, dw.sum(0).to(kind), db.sum(0).to(kind)
