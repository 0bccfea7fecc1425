"""The base class of published data sets: their files and checksums, where to find them, and how to read them."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from rueda.data.arrays import Arrays
from rueda.errors import DataError

Progress = Callable[[str, int, int | None], None]  # (name, amount done, total if known)


class Published(ABC):
    """A data set that is published elsewhere. Its files are identified by the SHA-256 of their *decoded* bytes.

    The decoded bytes are compared because the same data come in several encodings: gzip headers differ from mirror to
    mirror, and CIFAR-10 is published in two layouts.
    """

    name: ClassVar[str]
    folders: ClassVar[tuple[str, ...]]  # folder names that other libraries use for it
    system_folders: ClassVar[tuple[str, ...]] = ()  # folders of system packages
    addresses: tuple[str, ...]  # download addresses of the publisher
    checksums: ClassVar[dict[str, str]]  # a file's plain name: SHA-256 of its decoded bytes

    @abstractmethod
    def find(self, folder: Path, file: str) -> Path | None:
        """Return the path of ``file`` in ``folder``, in any layout; None if it is missing."""

    @abstractmethod
    def decode(self, path: Path) -> bytes:
        """Read a file that :meth:`find` returned and decode it to the plain bytes."""

    @abstractmethod
    def arrays(self, read: Callable[[str], bytes], split: str) -> Arrays:
        """Return the examples of a split from the plain bytes of its files."""

    @abstractmethod
    def download(self, folder: Path, progress: Progress | None) -> None:
        """Download all files from the publisher into ``folder``."""

    def missing(self, folder: Path) -> list[str]:
        """Return the files that are missing in ``folder``."""
        return [file for file in self.checksums if self.find(folder, file) is None]

    def read(self, folder: Path, file: str) -> bytes:
        """Read and decode one file and compare its checksum.

        Raises:
            DataError: the file is missing, corrupt or not the published one.
        """
        path = self.find(folder, file)
        if path is None:
            raise DataError(self.name, expected=f"{file} in {folder}", got="no such file", do=_advice(self.name))
        try:
            plain = self.decode(path)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}; {_advice(self.name)}") from None
        self.verify(file, plain, str(path))
        return plain

    def verify(self, file: str, plain: bytes, where: str) -> None:
        """Compare the checksum of a file's decoded bytes with the published one; raise DataError if it differs."""
        found = hashlib.sha256(plain).hexdigest()
        if found != self.checksums[file]:
            expected = f"{self.name}'s {file}, SHA-256 {self.checksums[file][:12]}..."
            do = f"it is corrupt: remove it and run `rueda data get {self.name}`"
            raise DataError(where, expected=expected, got=f"{found[:12]}... ({len(plain):,} bytes)", do=do)


def check_split(name: str, split: str, splits: tuple[str, ...] = ("train", "test")) -> None:
    """Raise DataError for a split that the data set does not have."""
    if split not in splits:
        raise DataError(f"{name} split", expected=" or ".join(splits), got=split, do="choose one of them")


def corrupt(path: Path | str, name: str, why: str) -> DataError:
    """Return the error for a file that cannot be decoded."""
    return DataError(f"{path}: corrupt ({why}); remove it and run `rueda data get {name}`")


def _advice(name: str) -> str:
    return f"run `rueda data get {name}`, with --from DIR if you have the files"
