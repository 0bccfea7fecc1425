"""Images a second: Rueda's loader against torch's DataLoader with per-image transforms, one thread each.

Both crop (padding 4), flip, convert to float and normalise images of 3 x 32 x 32 bytes in batches of 256. The
per-image side is what one writes with tensors: pad, slice, flip, ``/ 255``, subtract, divide, and the default collate.
With ``RUEDA_DATA`` set, the images are CIFAR-10's; else they are random bytes, which cost the same.

    python benchmarks/loader.py
"""

from __future__ import annotations

import os
import statistics

import torch
from torch.nn.functional import pad
from torch.utils.data import DataLoader, Dataset

from _common import compare, ratio, save
from rueda.data import Arrays, HorizontalFlip, Loader, RandomCrop
from rueda.data.augment import Augmentation

BATCH, REPEATS, NUM_BATCHES = 256, 9, 24
MEAN, STD = (0.4914, 0.48216, 0.44653), (0.24703, 0.24349, 0.26159)


class PerImage(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """What a user would write: one image at a time, with tensors."""

    def __init__(self, data: Arrays) -> None:
        self.images, self.labels = data.inputs, data.targets
        self.mean, self.std = torch.tensor(MEAN).reshape(3, 1, 1), torch.tensor(STD).reshape(3, 1, 1)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = pad(self.images[index], (4, 4, 4, 4))
        down, right = torch.randint(0, 9, (2,)).tolist()
        image = image[:, down : down + 32, right : right + 32]
        if torch.rand(()) < 0.5:
            image = image.flip(2)
        return (image.float() / 255 - self.mean) / self.std, self.labels[index]


class Plain:
    """The augmentations in plain torch operations, as they run on a GPU."""

    def __init__(self, *augmentations: RandomCrop | HorizontalFlip) -> None:
        self.augmentations = augmentations

    def __call__(self, images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Augment a batch."""
        for augmentation in self.augmentations:
            images = augmentation.in_torch(images, keys)
        return images


def images() -> tuple[Arrays, str]:
    if os.environ.get("RUEDA_DATA"):
        from rueda.tasks.datasets import load

        return load("cifar-10"), "CIFAR-10"
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (50_000, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return Arrays(inputs, torch.zeros(50_000, dtype=torch.int64), mean=MEAN, std=STD), "random bytes"


def main() -> None:
    torch.set_num_threads(1)
    data, source = images()
    per_image = PerImage(data)
    augment: list[Augmentation] = [RandomCrop(4), HorizontalFlip()]

    def torch_loader() -> None:
        wanted = iter(DataLoader(per_image, BATCH, shuffle=True, drop_last=True))
        for _ in range(NUM_BATCHES):
            next(wanted)

    def drain(loader: Loader) -> None:
        for _ in range(NUM_BATCHES):
            if loader.next_batch() is None:
                loader.next_batch()

    crop_flip, plain, prefetching, bare = (
        Loader(data, BATCH, augment=augment),
        Loader(data, BATCH, augment=[Plain(RandomCrop(4), HorizontalFlip())]),
        Loader(data, BATCH, augment=augment, prefetch=2),
        Loader(data, BATCH),
    )
    seconds = compare(
        {
            "torch DataLoader, per image": torch_loader,
            "rueda, torch operations": lambda: drain(plain),
            "rueda, with a prefetch thread": lambda: drain(prefetching),
            "rueda": lambda: drain(crop_flip),
            "rueda, without crop and flip": lambda: drain(bare),
        },
        repeats=REPEATS,
    )
    prefetching.close()
    rates = {name: NUM_BATCHES * BATCH / statistics.median(times) for name, times in seconds.items()}
    base = "torch DataLoader, per image"
    ratios = {name: ratio(seconds, base, name) for name in seconds}
    print(f"crop, flip and normalise 3 x 32 x 32 ({source}), batch {BATCH}, 1 thread, median of {REPEATS}")
    for name, rate in rates.items():
        print(f"  {name:32s} {rate:12,.0f} images/s  {ratios[name]:6.1f} x")
    save(
        "loader",
        {"source": source, "batch": BATCH, "repeats": REPEATS, "images_per_second": rates, "ratios": ratios},
        seeds=(0,),
    )
    print(f"ratio {ratios['rueda']:.1f} (at least 4)")


if __name__ == "__main__":
    main()
