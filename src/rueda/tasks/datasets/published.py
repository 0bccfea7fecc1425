"""What is known about a published data set: its files, their checksums, where it lies and how it is read."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from rueda.data.arrays import Arrays
from rueda.errors import DataError

Progress = Callable[[str, int, int | None], None]  # what is done, bytes so far, bytes in all where known


class Published(ABC):
    """A data set that others publish. Its files are known by the SHA-256 of their *decoded* bytes.

    The decoded bytes are compared because the same data come in several wrappings: gzip headers differ from mirror to
    mirror, and CIFAR-10 is published in two layouts.
    """

    name: ClassVar[str]
    folders: ClassVar[tuple[str, ...]]  # names under which others keep it
    places: ClassVar[tuple[str, ...]] = ()  # where a system's packages put it
    addresses: tuple[str, ...]  # of the publisher
    checksums: ClassVar[dict[str, str]]  # a file's plain name: SHA-256 of its decoded bytes

    @abstractmethod
    def find(self, folder: Path, file: str) -> Path | None:
        """Say where ``folder`` holds ``file``, in any layout; None where it does not."""

    @abstractmethod
    def decode(self, path: Path) -> bytes:
        """Read a file that :meth:`find` found, whatever its layout, into the plain bytes."""

    @abstractmethod
    def arrays(self, read: Callable[[str], bytes], split: str) -> Arrays:
        """Make the examples of a split from the plain bytes of its files."""

    @abstractmethod
    def download(self, folder: Path, progress: Progress | None) -> None:
        """Fetch all files from the publisher into ``folder``."""

    def missing(self, folder: Path) -> list[str]:
        """List the files that ``folder`` does not hold."""
        return [file for file in self.checksums if self.find(folder, file) is None]

    def read(self, folder: Path, file: str) -> bytes:
        """Read one file and compare its checksum.

        Raises:
            DataError: the file is missing, torn or not what was published.
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
        """Compare the bytes of ``file`` with the published ones."""
        found = hashlib.sha256(plain).hexdigest()
        if found != self.checksums[file]:
            raise DataError(
                where,
                expected=f"{self.name}'s {file}, SHA-256 {self.checksums[file][:12]}...",
                got=f"{found[:12]}... ({len(plain):,} bytes)",
                do=f"it is torn or altered: remove it and run `rueda data get {self.name}`",
            )


def check_split(name: str, split: str) -> None:
    """Refuse a split other than train and test."""
    if split not in ("train", "test"):
        raise DataError(f"{name} split", expected="train or test", got=split, do="choose one of them")


def torn(path: Path | str, name: str, why: str) -> DataError:
    """Make the error for a file that cannot be decoded."""
    return DataError(f"{path}: torn or corrupt ({why}); remove it and run `rueda data get {name}`")


def _advice(name: str) -> str:
    return f"run `rueda data get {name}`, with --from DIR if you have the files"
