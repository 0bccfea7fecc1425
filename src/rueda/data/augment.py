"""Augmentation of whole batches: random crop, flip and cutout.

An augmentation is called with the images of a batch [B, C, H, W], of any dtype, and one random key per image (int64
[B]); it returns images of the same shape. Its random choices are a function of these keys, which are a hash of (seed,
epoch, position in the epoch), so the result does not depend on the number of workers, on prefetching or on a restart.
Any function of ``(images, keys)`` can be used as an augmentation.

Crop and flip have two implementations with bit-identical results: one in torch for any device, and one in numpy for the
CPU. The latter views each row of an image as one opaque value (of dtype ``void``), which numpy copies as a whole. It
views a padded canvas as the strided array of all its windows, so that a crop selects one window and no index per pixel
is computed. It works in place on chunks that fit in the cache: ``draw`` draws the random numbers once, and ``apply`` is
then called for each chunk.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rueda.data.counter import Bits, fork, fork_tensor
from rueda.errors import DataError

Draws = NDArray[np.int64]
Augmentation = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_CROP, _FLIP, _CUTOUT = 1, 2, 3  # each kind of augmentation has its own random stream


class _InPlace(ABC):
    """An augmentation with an in-place implementation for the CPU."""

    def __call__(self, images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return augmented copies of the images."""
        check_images(images)
        if images.device.type != "cpu" or images.dtype == torch.bfloat16:  # numpy has no bfloat16
            return self.in_torch(images, keys)
        images = images.clone(memory_format=torch.contiguous_format)
        self.apply(images.numpy(), self.draw(keys.numpy().view(np.uint64)))
        return images

    @abstractmethod
    def draw(self, keys: Bits) -> Draws: ...
    @abstractmethod
    def apply(self, images: NDArray[Any], draws: Draws) -> None: ...
    @abstractmethod
    def in_torch(self, images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True)
class RandomCrop(_InPlace):
    """Pad each image with ``padding`` zeros on every side, and crop it to its original size at a random position.

    >>> image = torch.arange(1, 10, dtype=torch.uint8).reshape(1, 1, 3, 3)
    >>> RandomCrop(padding=1)(image, torch.tensor([7])).squeeze()
    tensor([[0, 1, 2],
            [0, 4, 5],
            [0, 7, 8]], dtype=torch.uint8)
    """

    padding: int = 4

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise DataError("padding", expected="0 or more", got=self.padding, do="correct it")

    def draw(self, keys: Bits) -> Draws:
        """Draw the row and the column in the padded image where each crop begins, [2, B]."""
        bits, mask = fork(keys, _CROP), np.uint64(0xFFFFFF)
        places = np.stack([(bits >> np.uint64(8)) & mask, (bits >> np.uint64(32)) & mask])
        return np.asarray(places % np.uint64(2 * self.padding + 1), dtype=np.int64)

    def apply(self, images: NDArray[Any], draws: Draws) -> None:
        """Crop in place: copy each image, shifted, into a canvas of zeros, and copy the middle of the canvas back."""
        if self.padding == 0:
            return
        num = len(images)
        canvas, windows, middle = _canvas(images, self.padding)
        rows = _rows(images)
        canvas[:num].fill(0)
        down, right = 2 * self.padding - draws
        windows[np.arange(num), down, right] = rows
        rows[...] = middle[:num]

    def in_torch(self, images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return the augmented images, computed in torch on any device."""
        bits = fork_tensor(keys, _CROP)
        choices, height, width = 2 * self.padding + 1, *images.shape[2:]
        down, right = ((bits >> 8) & 0xFFFFFF) % choices, ((bits >> 32) & 0xFFFFFF) % choices
        padded = torch.nn.functional.pad(images, (self.padding,) * 4)
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # [B, C, choices, choices, H, W]
        return windows[torch.arange(len(images), device=images.device), :, down, right]


@dataclass(frozen=True)
class HorizontalFlip(_InPlace):
    """Mirror each image horizontally with probability ``probability``.

    >>> HorizontalFlip(probability=1.0)(torch.tensor([[[[1, 2, 3]]]]), torch.tensor([0]))
    tensor([[[[3, 2, 1]]]])
    """

    probability: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise DataError("probability", expected="from 0 to 1", got=self.probability, do="correct it")

    def draw(self, keys: Bits) -> Draws:
        """Draw for each image whether it is mirrored (1) or not (0), [1, B]."""
        bits = (fork(keys, _FLIP) >> np.uint64(40)).view(np.int64)
        return np.asarray(bits < self._threshold(), dtype=np.int64)[None]

    def apply(self, images: NDArray[Any], draws: Draws) -> None:
        """Mirror the chosen images in place."""
        chosen = draws[0].nonzero()[0]
        if len(chosen):
            items = as_items(images)
            picked = items[chosen].view(images.dtype).reshape(-1, *images.shape[1:])
            items[chosen] = as_items(torch.from_numpy(picked).flip(3).numpy())

    def in_torch(self, images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return the augmented images, computed in torch on any device."""
        mirrored = ((fork_tensor(keys, _FLIP) >> 40) & 0xFFFFFF) < self._threshold()
        return torch.where(mirrored[:, None, None, None], images.flip(3), images)

    def _threshold(self) -> int:
        return round(self.probability * (1 << 24))


@dataclass(frozen=True)
class Cutout:
    """Fill a square of ``size`` x ``size`` pixels at a random position (DeVries and Taylor 2017, arXiv 1708.04552).

    The centre of the square is any pixel of the image, so a part of the square may lie outside. ``fill`` is the value
    of the filled pixels, on the scale of the raw images: for bytes, 0 is black.

    >>> Cutout(size=2)(torch.ones(1, 1, 3, 3, dtype=torch.uint8), torch.tensor([1])).squeeze()
    tensor([[0, 1, 1],
            [0, 1, 1],
            [1, 1, 1]], dtype=torch.uint8)
    """

    size: int
    fill: float = 0.0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise DataError("size", expected="1 or more", got=self.size, do="correct it")

    def __call__(self, images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return copies of the images, each with a square filled."""
        check_images(images)
        bits, (height, width) = fork_tensor(keys, _CUTOUT), images.shape[2:]
        top = ((bits >> 8) & 0xFFFFFF) % height - self.size // 2
        left = ((bits >> 32) & 0xFFFFFF) % width - self.size // 2
        rows = torch.arange(height, device=images.device) - top[:, None]  # [B, H]
        columns = torch.arange(width, device=images.device) - left[:, None]  # [B, W]
        inside_rows, inside_columns = ((place >= 0) & (place < self.size) for place in (rows, columns))
        inside = inside_rows[:, None, :, None] & inside_columns[:, None, None, :]
        return images.masked_fill(inside, self.fill)


class _Scratch(threading.local):
    """The canvas that this thread used for its last chunk, and two views of it, kept for the next chunk."""

    key: tuple[object, ...] = ()
    views: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]


_scratch = _Scratch()


def _canvas(images: NDArray[Any], padding: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return a canvas with a border of ``padding``, [B, C, H + 2p, W + 2p], and two views of its rows.

    The first view, [B, 2p + 1, 2p + 1, C, H], holds a window for every position of an image in the canvas; the second,
    [B, C, H], is the window in the middle.
    """
    num, channels, height, width = images.shape
    key = (channels, height, width, padding, images.dtype)
    if _scratch.key != key or len(_scratch.views[0]) < num:
        canvas: NDArray[Any] = np.zeros((num, channels, height + 2 * padding, width + 2 * padding), images.dtype)
        row, choices = np.dtype((np.void, width * canvas.itemsize)), 2 * padding + 1
        image, channel, line, pixel = canvas.strides
        windows: NDArray[Any] = np.ndarray(
            (num, choices, choices, channels, height), row, canvas.data, 0, (image, line, pixel, channel, line)
        )
        _scratch.key, _scratch.views = key, (canvas, windows, windows[:, padding, padding])
    return _scratch.views


def _rows(images: NDArray[Any]) -> NDArray[Any]:
    """View [B, C, H, W] as [B, C, H] opaque rows."""
    return images.view(np.dtype((np.void, images.shape[3] * images.itemsize)))[..., 0]


def as_items(examples: NDArray[Any]) -> NDArray[Any]:
    """View [B, ...] as [B] opaque values, so that numpy copies each example as a whole."""
    flat = examples.reshape(len(examples), -1)
    return flat.view(np.dtype((np.void, flat.shape[1] * flat.itemsize)))[:, 0]


def check_images(images: torch.Tensor) -> None:
    """Raise an error unless the shape is [B, C, H, W]."""
    if images.ndim != 4:
        expected, do = "images [examples, channels, height, width]", "reshape the inputs or leave the augmentation out"
        raise DataError("augmentation", expected=expected, got=list(images.shape), do=do)
