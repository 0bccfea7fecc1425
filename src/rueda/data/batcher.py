"""Make a batch from indices: gather, augment, convert.

On the CPU the work is done in chunks that fit in the cache, so an image's bytes are read from memory once and its
floats written once. For a batch on a GPU, the bytes are gathered into pinned memory and copied as bytes (a quarter of
the size of the floats), and the same augmentations run on the GPU; data on the GPU stay there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rueda.data.arrays import Arrays
from rueda.data.augment import Augmentation, Cutout, Draws, HorizontalFlip, RandomCrop, as_items, check_images
from rueda.data.buffers import Buffers
from rueda.data.counter import fork, fork_tensor
from rueda.data.partition import Indices
from rueda.data.transfer import Transfer
from rueda.errors import DataError

CHUNK_BYTES = 1536 * 1024  # of converted inputs; measured: smaller chunks add overhead, larger ones exceed the cache
_IN_PLACE = (RandomCrop, HorizontalFlip)  # these draw for a whole epoch at once and work in place


class Batcher:
    """Makes batches of ``data`` for ``device``; see :class:`rueda.data.Loader` for the arguments."""

    def __init__(
        self,
        data: Arrays,
        augment: Sequence[Augmentation] = (),
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        self.data, self.augment = data, tuple(augment)
        if any(isinstance(each, (*_IN_PLACE, Cutout)) for each in augment):
            check_images(data.inputs)
        self.device = data.device if device is None else device
        self.dtype = dtype if data.inputs.dtype == torch.uint8 or data.inputs.is_floating_point() else None
        # How a batch is made: "host": on the CPU; "send": on the device, from raw inputs copied to it; "device": on the
        # device, where the data are already.
        self.way = "device" if data.device.type != "cpu" else "host" if self.device.type == "cpu" else "send"
        # Memory must not change during an asynchronous copy; torch's pinned allocator takes care of that.
        self._buffers = Buffers(reuse=self.way == "host", pinned=self.device.type == "cuda")
        self._transfer = Transfer(self.device)
        self._shape = tuple(data.inputs.shape[1:])
        self._chunk = max(1, CHUNK_BYTES // (data.inputs[0].numel() * dtype.itemsize))
        if self.way == "host":
            if data.inputs.dtype == torch.bfloat16:
                raise DataError(
                    "inputs", expected="a type that numpy knows", got="bfloat16", do="store them as float32"
                )
            raw = np.empty((min(self._chunk, len(data)), *self._shape), data.inputs.numpy().dtype)
            self._items, self._scratch = as_items(data.inputs.numpy()), (raw, as_items(raw))

    def gather(
        self, indices: Indices, draws: EpochDraws | None = None, share: slice | Indices = slice(None)
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Do the part that runs on the host: gather the examples, and complete the batch if it stays on the host.

        ``draws`` holds the random choices for all positions of the epoch; ``share`` selects those of this batch.
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
        """Do the part that runs on the device: copy, augment, convert. A batch on the host is complete already."""
        if self.way == "host":
            return inputs, targets
        inputs, targets, *rest = self._transfer(inputs, targets, *([] if keys is None else [keys]))
        if self.augment and rest:
            (keys,) = rest
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
            raw, items = self._scratch[0][: stop - start], self._scratch[1][: stop - start]
            np.take(self._items, indices[start:stop], out=items, mode="clip")  # clip avoids an extra copy
            images = torch.from_numpy(raw)
            if mine is not None:
                images = mine.apply(self.augment, images, start, stop)
            data.floats(images, dtype, out=out[start:stop])
        return out


@dataclass(frozen=True)
class EpochDraws:
    """The random keys of all positions in an epoch, and the draws that in-place augmentations make from them.

    Augmentation number k uses ``fork(keys, k)``, so two of the same kind draw different numbers.
    """

    keys: NDArray[np.uint64]  # [N]
    drawn: tuple[Draws | None, ...]  # for each augmentation: [k, N], or None if it is not done in place

    @classmethod
    def of(cls, augment: Sequence[Augmentation], keys: NDArray[np.uint64]) -> EpochDraws:
        """Draw all random choices for these keys."""
        drawn = [
            # Not for subclasses, which may override __call__.
            each.draw(fork(keys, number)) if isinstance(each, _IN_PLACE) and type(each) in _IN_PLACE else None
            for number, each in enumerate(augment)
        ]
        return cls(keys, tuple(drawn))

    def share(self, share: slice | Indices) -> EpochDraws:
        """Return the keys and draws at the positions of one worker's batch."""
        return EpochDraws(self.keys[share], tuple(None if d is None else d[:, share] for d in self.drawn))

    def apply(self, augment: Sequence[Augmentation], images: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Augment a chunk of the batch, possibly in place, and return it."""
        for number, (augmentation, drawn) in enumerate(zip(augment, self.drawn, strict=True)):
            if drawn is not None and isinstance(augmentation, _IN_PLACE):
                augmentation.apply(images.numpy(), drawn[:, start:stop])
            else:
                keys = fork(self.keys[start:stop], number).view(np.int64)
                images = augmentation(images, torch.from_numpy(keys)).contiguous()
        return images
