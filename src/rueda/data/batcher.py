"""From indices to a batch: gather, augment, convert; whole batches at a time.

On the CPU the work goes in chunks that stay in the cache, so that an image's bytes are read once from memory and its
floats written once. Where the batch is wanted on a GPU, the bytes are gathered into pinned memory and sent as they
are (a quarter of the floats), and the same augmentations run there; data that lie on the GPU never leave it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rueda.data.arrays import Arrays
from rueda.data.augment import Augmentation, Cutout, Draws, HorizontalFlip, RandomCrop, as_whole, check_images
from rueda.data.buffers import Buffers
from rueda.data.counter import fork, fork_tensor
from rueda.data.partition import Indices
from rueda.errors import DataError

CHUNK_BYTES = 1536 * 1024  # of floats, by measurement: smaller chunks cost calls, larger ones leave the cache
_PLACED = (RandomCrop, HorizontalFlip)  # they can draw for an epoch at once and work in place


class Batcher:
    """Makes batches of ``data`` for ``device``; see :class:`rueda.data.Loader` for the arguments."""

    def __init__(
        self,
        data: Arrays,
        augment: Sequence[Augmentation] = (),
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
        reuse_buffers: bool = True,
    ) -> None:
        self.data, self.augment = data, tuple(augment)
        if any(isinstance(each, (*_PLACED, Cutout)) for each in augment):
            check_images(data.inputs)
        self.device = data.device if device is None else device
        self.dtype = dtype if data.inputs.dtype == torch.uint8 or data.inputs.is_floating_point() else None
        # Where a batch is made: on the host, on the device from bytes that are sent, or on the device from data there.
        self.way = "device" if data.device.type != "cpu" else "host" if self.device.type == "cpu" else "send"
        # What is being sent must not be overwritten: torch keeps pinned memory of its own until it has arrived.
        self._buffers = Buffers(reuse=reuse_buffers and self.way == "host", pinned=self.device.type == "cuda")
        self._shape = tuple(data.inputs.shape[1:])
        self._chunk = max(1, CHUNK_BYTES // (data.inputs[0].numel() * dtype.itemsize))
        if self.way == "host":
            if data.inputs.dtype == torch.bfloat16:
                raise DataError(
                    "inputs", expected="a type that numpy knows", got="bfloat16", do="store them as float32"
                )
            raw = np.empty((min(self._chunk, len(data)), *self._shape), data.inputs.numpy().dtype)
            self._whole, self._scratch = as_whole(data.inputs.numpy()), (raw, as_whole(raw))

    def gather(
        self, indices: Indices, draws: EpochDraws | None = None, share: slice | Indices = slice(None)
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Do the part that needs the host: pick the examples, and finish the batch where it stays on the host.

        ``draws`` are the epoch's, of which the examples at ``indices`` take ``share``.
        """
        places = torch.from_numpy(indices)
        if self.way == "host":
            return self._on_host(indices, draws, share), self.data.targets.index_select(0, places), None
        keys = None if draws is None else torch.from_numpy(draws.keys[share].view(np.int64))
        if self.way == "device":
            places = places.to(self.data.device)
            return self.data.inputs[places], self.data.targets[places], keys
        raw = self._buffers.take((len(indices), *self._shape), self.data.inputs.dtype)
        targets = self._buffers.take((len(indices), *self.data.targets.shape[1:]), self.data.targets.dtype)
        torch.index_select(self.data.inputs, 0, places, out=raw)
        torch.index_select(self.data.targets, 0, places, out=targets)
        return raw, targets, keys

    def finish(
        self, inputs: torch.Tensor, targets: torch.Tensor, keys: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Do the part that runs on the device: send, augment, convert. A batch made on the host is ready."""
        if self.way == "host":
            return inputs, targets
        inputs = inputs.to(self.device, non_blocking=True)
        targets = targets.to(self.device, non_blocking=True)
        if self.augment and keys is not None:
            keys = keys.to(self.device, non_blocking=True)
            for number, augmentation in enumerate(self.augment):
                inputs = augmentation(inputs, fork_tensor(keys, number))
        return self.data.floats(inputs, self.dtype or inputs.dtype), targets

    def _on_host(self, indices: Indices, draws: EpochDraws | None, share: slice | Indices) -> torch.Tensor:
        data, dtype = self.data, self.dtype or self.data.inputs.dtype
        out = self._buffers.take((len(indices), *self._shape), dtype)
        if draws is None and data.inputs.dtype == dtype:
            return torch.index_select(data.inputs, 0, torch.from_numpy(indices), out=out)
        mine = None if draws is None else draws.share(share)
        for start in range(0, len(indices), self._chunk):
            stop = min(start + self._chunk, len(indices))
            raw, whole = self._scratch[0][: stop - start], self._scratch[1][: stop - start]
            np.take(self._whole, indices[start:stop], out=whole, mode="clip")  # clip: no copy in case of an error
            images = torch.from_numpy(raw)
            if mine is not None:
                images = mine.apply(self.augment, images, start, stop)
            data.floats(images, dtype, out=out[start:stop])
        return out


@dataclass(frozen=True)
class EpochDraws:
    """What the augmentation draws: a key for each place in the epoch and, for augmentations that can, their draws.

    Augmentation number k gets ``fork(keys, k)``: two of one kind draw different numbers.
    """

    keys: NDArray[np.uint64]  # [N]
    drawn: tuple[Draws | None, ...]  # [k, N] an augmentation

    @classmethod
    def of(cls, augment: Sequence[Augmentation], keys: NDArray[np.uint64]) -> EpochDraws:
        """Draw for these keys."""
        drawn = [
            # the very class: whoever derives another from it means it to be called
            each.draw(fork(keys, number)) if isinstance(each, _PLACED) and type(each) in _PLACED else None
            for number, each in enumerate(augment)
        ]
        return cls(keys, tuple(drawn))

    def share(self, share: slice | Indices) -> EpochDraws:
        """Take one worker's part of a batch."""
        return EpochDraws(self.keys[share], tuple(None if d is None else d[:, share] for d in self.drawn))

    def apply(self, augment: Sequence[Augmentation], images: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Augment a chunk of the batch; ``images`` may be changed."""
        for number, (augmentation, drawn) in enumerate(zip(augment, self.drawn, strict=True)):
            if drawn is not None and isinstance(augmentation, _PLACED):
                augmentation.apply(images.numpy(), drawn[:, start:stop])
            else:
                keys = fork(self.keys[start:stop], number).view(np.int64)
                images = augmentation(images, torch.from_numpy(keys)).contiguous()
        return images
