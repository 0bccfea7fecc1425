"""A folder of images with one folder for each class, decoded when they are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from rueda.errors import DataError, MissingExtra, read_failure

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")


class ImageFolder(Dataset[tuple[Any, int]]):
    """The images of ``folder/CLASS/.../NAME.jpg``, each as a pair of an image and the number of its class.

    Classes are numbered by the alphabetical order of their names. Only the names of the files are kept in memory; an
    image is opened and decoded when it is read, by Pillow (``pip install 'rueda[images]'``).

    Args:
        folder: the folder.
        size: images are scaled until the shorter side has this length, and the square in their middle is cut out.
        transform: makes an example of a PIL image, instead of scaling and cutting: such as a transform of torchvision.
            The default returns a float tensor [3, size, size] of numbers from 0 to 1.
        suffixes: the endings of the files that are images.

    Attributes:
        names: the names of the classes.
        paths: the files.
        labels: the class of each file, int64 [N].
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        size: int = 224,
        transform: Callable[[Any], Any] | None = None,
        suffixes: tuple[str, ...] = SUFFIXES,
    ) -> None:
        self.folder, self._size, self._transform = Path(folder), size, transform
        if size < 1:
            raise DataError("size", expected="1 or more pixels", got=size, do="correct it")
        pillow()  # an error now rather than at the first image, which may be read in another process
        try:
            classes = sorted(each for each in self.folder.iterdir() if each.is_dir())
        except OSError as error:
            expected, do = "a folder with a folder for each class", "check the path"
            raise DataError(str(folder), expected=expected, got=read_failure(error), do=do) from None
        found = [sorted(path for path in each.rglob("*") if path.suffix.lower() in suffixes) for each in classes]
        self.names = tuple(each.name for each in classes)
        self.paths = [str(path) for paths in found for path in paths]
        self.labels = torch.tensor([number for number, paths in enumerate(found) for _ in paths], dtype=torch.int64)
        if not self.paths:
            got = f"{len(classes)} folders without images" if classes else "no folders"
            raise DataError(str(folder), expected="folder/CLASS/NAME.jpg", got=got, do="give one folder for each class")
        for name, paths in zip(self.names, found, strict=True):
            if not paths:
                raise DataError(
                    str(self.folder / name), expected="at least one image", got="none", do="remove the folder"
                )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image_module = pillow()
        path = self.paths[index]
        try:
            with image_module.open(path) as image:
                if self._transform is None:
                    return square(image, self._size), int(self.labels[index])
                return self._transform(image.convert("RGB")), int(self.labels[index])
        except (OSError, SyntaxError) as error:  # Pillow raises both for a damaged file
            raise DataError(path, expected="an image", got=read_failure(error), do="repair or remove it") from None


def square(image: Any, size: int) -> torch.Tensor:
    """Scale a PIL image and cut out the square in its middle: floats [3, size, size] from 0 to 1."""
    image.draft("RGB", (size, size))  # a JPEG is decoded at a fraction of its size where that is enough
    image = image.convert("RGB")
    width, height = image.size
    scale = size / min(width, height)
    width, height = max(size, round(width * scale)), max(size, round(height * scale))
    left, top = (width - size) // 2, (height - size) // 2
    image = image.resize((width, height), resample=2).crop((left, top, left + size, top + size))  # bilinear
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div_(255)


def pillow() -> Any:
    """Return the module ``PIL.Image``, or raise an error that names the extra to install."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("Pillow", "images") from None
    return Image
