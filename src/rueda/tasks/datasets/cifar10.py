"""CIFAR-10: 60,000 colour images, 3 x 32 x 32, 10 classes (Krizhevsky 2009, "Learning Multiple Layers of Features")."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np

from rueda.data.arrays import Arrays
from rueda.errors import DataError
from rueda.tasks.datasets.download import fetch_to
from rueda.tasks.datasets.plain_pickle import read_batch
from rueda.tasks.datasets.published import Progress, Published, check_split, corrupt

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
RECORD = 1 + 3 * 32 * 32  # bytes: the label, then red, green and blue by rows


class Cifar10(Published):
    """Six files of 10,000 records, in the binary layout (``.bin``) or the Python layout (``cifar-10-batches-py``)."""

    name = "cifar-10"
    folders = ("cifar-10", "cifar-10-batches-bin", "cifar-10-batches-py", "cifar10")
    addresses: tuple[str, ...] = ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",)
    checksums: ClassVar[dict[str, str]] = {
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    }

    def find(self, folder: Path, file: str) -> Path | None:
        """Return the path of the binary file, which is faster to read, or else of the Python one."""
        plain = folder / file
        return next((path for path in (plain, plain.with_suffix("")) if path.is_file()), None)

    def decode(self, path: Path) -> bytes:
        """Return the records in the binary layout."""
        if path.suffix == ".bin":
            return path.read_bytes()
        labels, images = read_batch(path.read_bytes(), path)
        if images.ndim != 2 or images.shape != (len(labels), RECORD - 1) or min(labels, default=0) < 0:
            raise corrupt(path, self.name, f"{len(labels)} labels for images {list(images.shape)}")
        if max(labels, default=0) >= len(NAMES):
            raise DataError(
                f"labels of {path}", expected="0 to 9", got=max(labels), do=f"run `rueda data get {self.name}`"
            )
        return np.concatenate([np.array(labels, dtype=np.uint8)[:, None], images], axis=1).tobytes()

    def arrays(self, read: Callable[[str], bytes], split: str) -> Arrays:
        """Return images [N, 3, 32, 32] with the mean and standard deviation of the training images."""
        check_split(self.name, split)
        files = [file for file in self.checksums if file.startswith("test") == (split == "test")]
        images, labels = [], []
        for file in files:
            content = read(file)
            if len(content) % RECORD:
                raise corrupt(file, self.name, f"{len(content):,} bytes are not a whole number of records")
            records = np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD)
            labels.append(records[:, 0])
            images.append(records[:, 1:].reshape(-1, 3, 32, 32))
        return Arrays(
            np.concatenate(images),
            np.concatenate(labels),
            mean=[0.4914, 0.48216, 0.44653],
            std=[0.24703, 0.24349, 0.26159],
            names=NAMES,
        )

    def download(self, folder: Path, progress: Progress | None) -> None:
        """Download the archive and store its six data files; nothing else is unpacked."""
        from rueda.tasks.datasets.store import make_folder, write_to_cache

        make_folder(folder)
        address = self.addresses[0]
        with tempfile.TemporaryFile(dir=folder) as archive:  # without a name, so that nothing is left behind
            fetch_to(address, archive, progress)
            archive.seek(0)
            try:
                with tarfile.open(fileobj=archive) as tar:
                    for member in tar:
                        file = Path(member.name).name
                        content = tar.extractfile(member) if file in self.checksums else None
                        if content is not None:
                            write_to_cache(self, folder, file, content.read(), address)
            except (tarfile.TarError, EOFError, OSError) as error:
                raise corrupt(address, self.name, str(error)) from None
