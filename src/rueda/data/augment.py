"""Augmentation of whole batches: crop, flip, cut out.

An augmentation is called with the images of a batch [B, C, H, W], of any type, and one random key an image (int64
[B]); it gives images of the same shape. All it draws is a function of these keys, which are a hash of (seed, epoch,
place in the epoch): so the result does not depend on the number of workers, on prefetching or on a restart. Any
function of ``(images, keys)`` can be used as one.

Crop and flip exist twice, with the same result to the last bit: in torch, for any device, and for the CPU in numpy,
where a row of an image is one opaque value (a ``void`` of that many bytes) that is copied in one move, and a place to
crop at is an index into a strided view of all windows of a canvas: no index per pixel is ever made. These work in
place on chunks that stay in the cache, with the draws made once a batch (``draw``, then ``apply`` chunk by chunk).
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

_CROP, _FLIP, _CUTOUT = 1, 2, 3  # each kind of augmentation draws from a stream of its own


class _Placed(ABC):
    """An augmentation with a way of its own on the CPU."""

    def __call__(self, images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Change a copy of every image as its key says."""
        check_images(images)
        if images.device.type != "cpu" or images.dtype == torch.bfloat16:  # which numpy does not know
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
class RandomCrop(_Placed):
    """Pad each image with ``padding`` zeros on every side and cut the old size out at a random place.

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
        """Draw how far down and right of the padded image's corner each crop begins: [2, B]."""
        bits, mask = fork(keys, _CROP), np.uint64(0xFFFFFF)
        places = np.stack([(bits >> np.uint64(8)) & mask, (bits >> np.uint64(32)) & mask])
        return np.asarray(places % np.uint64(2 * self.padding + 1), dtype=np.int64)

    def apply(self, images: NDArray[Any], draws: Draws) -> None:
        """Crop in place: put each image into a black canvas, shifted, and take the middle of the canvas out."""
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
        """Do the same on any device."""
        bits = fork_tensor(keys, _CROP)
        choices, height, width = 2 * self.padding + 1, *images.shape[2:]
        down, right = ((bits >> 8) & 0xFFFFFF) % choices, ((bits >> 32) & 0xFFFFFF) % choices
        padded = torch.nn.functional.pad(images, (self.padding,) * 4)
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # [B, C, choices, choices, H, W]
        return windows[torch.arange(len(images), device=images.device), :, down, right]


@dataclass(frozen=True)
class HorizontalFlip(_Placed):
    """Mirror each image, left for right, with ``probability``.

    >>> HorizontalFlip(probability=1.0)(torch.tensor([[[[1, 2, 3]]]]), torch.tensor([0]))
    tensor([[[[3, 2, 1]]]])
    """

    probability: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise DataError("probability", expected="from 0 to 1", got=self.probability, do="correct it")

    def draw(self, keys: Bits) -> Draws:
        """Draw which images to mirror: 0 or 1, [1, B]."""
        bits = (fork(keys, _FLIP) >> np.uint64(40)).view(np.int64)
        return np.asarray(bits < self._threshold(), dtype=np.int64)[None]

    def apply(self, images: NDArray[Any], draws: Draws) -> None:
        """Mirror the chosen images in place."""
        chosen = draws[0].nonzero()[0]
        if len(chosen):
            whole = as_whole(images)
            picked = whole[chosen].view(images.dtype).reshape(-1, *images.shape[1:])
            whole[chosen] = as_whole(torch.from_numpy(picked).flip(3).numpy())

    def in_torch(self, images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Do the same on any device."""
        mirrored = ((fork_tensor(keys, _FLIP) >> 40) & 0xFFFFFF) < self._threshold()
        return torch.where(mirrored[:, None, None, None], images.flip(3), images)

    def _threshold(self) -> int:
        return round(self.probability * (1 << 24))


@dataclass(frozen=True)
class Cutout:
    """Fill a square of ``size`` pixels at a random place (DeVries and Taylor 2017, 1708.04552).

    The middle lies anywhere in the image, so that part of the square may lie outside. ``fill`` is in the unit of the
    raw images: for bytes, 0 is black.

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
        """Cut a square out of every image."""
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
    """The canvas of this thread's last chunk and the views of it."""

    key: tuple[object, ...] = ()
    views: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]


_scratch = _Scratch()


def _canvas(images: NDArray[Any], padding: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Give a canvas larger by ``padding`` on each side, [B, C, H + 2p, W + 2p], and two views of it by rows.

    The windows [B, 2p + 1, 2p + 1, C, H] are all places where an image fits; the middle [B, C, H] is one of them.
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


def as_whole(examples: NDArray[Any]) -> NDArray[Any]:
    """View [B, ...] as [B] opaque values, so that numpy moves an example in one go."""
    flat = examples.reshape(len(examples), -1)
    return flat.view(np.dtype((np.void, flat.shape[1] * flat.itemsize)))[:, 0]


def check_images(images: torch.Tensor) -> None:
    """Refuse what is not [B, C, H, W]."""
    if images.ndim != 4:
        raise DataError(
            "augmentation",
            expected="images [examples, channels, height, width]",
            got=list(images.shape),
            do="reshape the inputs or leave the augmentation out",
        )
