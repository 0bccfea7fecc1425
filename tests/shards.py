"""Tar archives as ``webdataset`` writes them, for tests."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def write_shards(folder: Path, lengths: tuple[int, ...] = (10, 3, 14, 7), **options: Any) -> list[str]:
    paths, number = [], 0
    for shard, length in enumerate(lengths):
        paths.append(str(folder / f"train-{shard:03d}.tar"))
        with tarfile.open(paths[-1], "w", **options) as archive:
            for _ in range(length):
                add(archive, f"a/{number:05d}.bin", bytes([number]) * (number * 37))
                add(archive, f"a/{number:05d}.cls", str(number).encode())
                number += 1
    return paths
