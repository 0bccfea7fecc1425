"""Fashion-MNIST: 70,000 grey images of clothes, 28 x 28, 10 classes (Xiao, Rasul and Vollgraf 2017, 1708.07747)."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rueda.data.arrays import Arrays
from rueda.tasks.datasets.download import fetch
from rueda.tasks.datasets.published import Progress, Published, check_split, corrupt

NAMES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


class FashionMnist(Published):
    """Four IDX files, plain or gzipped."""

    name = "fashion-mnist"
    folders = ("fashion-mnist", "FashionMNIST/raw", "FashionMNIST")
    system_folders: ClassVar[tuple[str, ...]] = ("/usr/share/datasets/fashion-mnist",)  # Debian's dataset-fashion-mnist
    addresses: tuple[str, ...] = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",)
    checksums: ClassVar[dict[str, str]] = {
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    }

    def find(self, folder: Path, file: str) -> Path | None:
        """Return the path of the plain file, which is faster to read, or else of the gzipped one."""
        return next((path for path in (folder / file, folder / f"{file}.gz") if path.is_file()), None)

    def decode(self, path: Path) -> bytes:
        """Read a file, decompressed if it is gzipped."""
        content = path.read_bytes()
        return self.unzip(content, path) if path.suffix == ".gz" else content

    def unzip(self, content: bytes, where: Path | str) -> bytes:
        """Decompress gzipped bytes."""
        try:
            return gzip.decompress(content)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise corrupt(where, self.name, str(error)) from None

    def arrays(self, read: Callable[[str], bytes], split: str) -> Arrays:
        """Return images [N, 1, 28, 28] with the mean and standard deviation of the training images."""
        check_split(self.name, split)
        part = "train" if split == "train" else "t10k"
        images, labels = (f"{part}-{file}-ubyte" for file in ("images-idx3", "labels-idx1"))
        return Arrays(
            read_idx(read(images), images)[:, None],
            read_idx(read(labels), labels),
            mean=[0.28604],
            std=[0.35302],
            names=NAMES,
        )

    def download(self, folder: Path, progress: Progress | None) -> None:
        """Download the four files and store them decompressed."""
        from rueda.tasks.datasets.store import write_to_cache

        for file in self.checksums:
            address = f"{self.addresses[0]}{file}.gz"
            write_to_cache(self, folder, file, self.unzip(fetch(address, progress), address), address)


def read_idx(content: bytes, where: str) -> NDArray[np.uint8]:
    """Decode the IDX format: two zeros, the type (8: bytes), the rank, the shape as 4-byte integers, the values.

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), "example").tolist()
    [7, 9]
    """
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise corrupt(where, "fashion-mnist", "not an IDX file of bytes")
    num_dimensions = content[3]
    if not 1 <= num_dimensions <= 3:
        raise corrupt(where, "fashion-mnist", f"{num_dimensions} dimensions instead of 1 to 3")
    start = 4 + 4 * num_dimensions
    if len(content) < start:
        raise corrupt(where, "fashion-mnist", "the header ends early")
    shape = struct.unpack(f">{num_dimensions}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise corrupt(where, "fashion-mnist", f"{len(content) - start:,} bytes for {'x'.join(map(str, shape))} values")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)
