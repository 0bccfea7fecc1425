"""Examples in tar archives, as ``webdataset`` writes them, read by index.

Members whose names agree up to the first dot are one example: ``0007.jpg`` and ``0007.cls``. The headers of all
archives are read once (:mod:`rueda.data.tar_index`), and from then on an example is one read of the file. So tar
archives are data like any other: shuffled as a whole, every example once an epoch on any number of workers, resumed at
the step.
"""

from __future__ import annotations

import glob
import io
import json
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from rueda.data import partition
from rueda.data.counter import draws, key_of
from rueda.data.image_folder import SUFFIXES, pillow
from rueda.data.partition import Indices
from rueda.data.tar_index import members
from rueda.errors import DataError, read_failure

_MOST_OPEN = 64
_MIX = 5  # a stream of random numbers apart from those of rueda.data.partition
_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")


class TarFiles(Dataset[Any]):
    """The examples of tar archives.

    Args:
        files: paths, or one pattern: ``shards/*.tar`` or ``shards/train-{000..099}.tar``.
        fields: the endings of the members of an example that are wanted, such as ``("jpg", "cls")``: an example is then
            a tuple. By default an example is a dict of all its members, and of its name as ``__key__``.
        decode: makes a value of the ending and the bytes of a member; by default :func:`decode_member`.
        transform: makes an example of the dict or tuple.
        mix: shuffle the archives, and the examples of this many archives together, instead of all examples: reading is
            then almost sequential, for archives that are larger than memory and on slow disks.
    """

    def __init__(
        self,
        files: str | Path | Sequence[str | Path],
        *,
        fields: Sequence[str] | None = None,
        decode: Callable[[str, bytes], Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
        mix: int | None = None,
    ) -> None:
        self.files = expand(files)
        self._fields = None if fields is None else tuple(fields)
        self._decode, self._transform, self._mix = decode, transform, mix
        if mix is not None and mix < 1:
            raise DataError("mix", expected="1 or more archives", got=mix, do="correct it")
        self._open: OrderedDict[int, int] = OrderedDict()
        self._index()

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        first, end = int(self._first[index]), int(self._first[index + 1])
        spans = self._spans[first:end].tolist()  # offset, size, ending of each member
        start = spans[0][0]
        data = os.pread(self._file(index), spans[-1][0] + spans[-1][1] - start, start)
        if len(data) != spans[-1][0] + spans[-1][1] - start:
            file, do = self._file_of(index), "leave the archives as they are during a training"
            raise DataError(file, expected="the members that it had", got="a shorter file", do=do)
        decode = decode_member if self._decode is None else self._decode
        values = {}
        for offset, size, ending in spans:
            name = self._endings[ending]
            if self._fields is None or name in self._fields:
                values[name] = decode(name, data[offset - start : offset - start + size])
        example: Any = values
        if self._fields is None:
            values["__key__"] = self._keys[index].decode("utf-8", "surrogateescape")
        else:
            example = tuple(self._wanted(values, name, index) for name in self._fields)
        return example if self._transform is None else self._transform(example)

    def order(self, seed: int, epoch: int) -> Indices:
        """Return the order of the examples in an epoch, the same on every worker; see ``mix``."""
        if self._mix is None:
            return partition.order(len(self), seed, epoch)
        shards = len(self.files)
        turn = np.empty(shards, np.int64)
        turn[np.argsort(draws(key_of(_MIX, seed, epoch), np.arange(shards, dtype=np.int64)))] = np.arange(shards)
        random = draws(key_of(_MIX, seed, epoch, 1), np.arange(len(self), dtype=np.int64))
        return np.lexsort((random, turn[self._shard] // self._mix)).astype(np.int64)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}  # another process opens the archives itself

    def __del__(self) -> None:
        for file in self.__dict__.get("_open", {}).values():
            os.close(file)

    # The archives.

    def _index(self) -> None:
        """Read the headers of all archives."""
        keys: list[bytes] = []
        first, spans, shard = [0], list[tuple[int, int, int]](), list[int]()
        endings: dict[str, int] = {}
        for number, path in enumerate(self.files):
            last, num_before = "", len(keys)
            try:
                for name, offset, size in members(path):
                    folder, slash, base = name.rpartition("/")
                    stem, dot, ending = base.partition(".")
                    if not dot or not stem:
                        continue  # no part of an example, as webdataset has it
                    key = folder + slash + stem
                    if key != last or len(keys) == num_before:
                        last = key
                        keys.append(key.encode("utf-8", "surrogateescape"))
                        shard.append(number)
                        first.append(first[-1])
                    spans.append((offset, size, endings.setdefault(ending.lower(), len(endings))))
                    first[-1] += 1
            except OSError as error:
                raise DataError(path, expected="a tar archive", got=read_failure(error), do="check the path") from None
        if not keys:
            expected, do = "members such as 0001.jpg and 0001.cls", "check the archives"
            raise DataError(self.files[0], expected=expected, got="none", do=do)
        self._endings = tuple(endings)
        self._keys: NDArray[np.bytes_] = np.array(keys)  # arrays: processes that are forked share them
        self._first, self._shard = np.array(first, np.int64), np.array(shard, np.int64)
        self._spans = np.array(spans, np.int64)

    def _file(self, index: int) -> int:
        number = int(self._shard[index])
        file = self._open.get(number)
        if file is None:
            if len(self._open) >= _MOST_OPEN:
                os.close(self._open.popitem(last=False)[1])
            file = self._open[number] = os.open(self.files[number], os.O_RDONLY)
        return file

    def _file_of(self, index: int) -> str:
        return self.files[int(self._shard[index])]

    def _wanted(self, values: dict[str, Any], name: str, index: int) -> Any:
        if name not in values:
            key = self._keys[index].decode("utf-8", "surrogateescape")
            what, do = f"{key} in {self._file_of(index)}", "correct fields, or the archive"
            raise DataError(what, expected=f"a member .{name}", got=sorted(values) or "none of the fields", do=do)
        return values[name]


def decode_member(ending: str, data: bytes) -> Any:
    """Make a value of the bytes of a member, by its ending; of an unknown one the bytes themselves.

    Images become uint8 tensors [3, H, W]; ``cls``, ``id`` and ``index`` whole numbers; ``txt`` a text; ``json`` what it
    describes; ``npy`` a tensor.

    >>> decode_member("cls", b"7"), decode_member("meta.json", b'{"a": 1}'), decode_member("xyz", b"..")
    (7, {'a': 1}, b'..')
    """
    last = ending.rpartition(".")[2]
    if last in ("cls", "cls2", "id", "index", "count"):
        return int(data)
    if last in ("txt", "text", "transcript"):
        return data.decode()
    if last in ("json", "jsn"):
        return json.loads(data)
    if last == "npy":
        return torch.from_numpy(np.load(io.BytesIO(data), allow_pickle=False))
    if f".{last}" in SUFFIXES:
        with pillow().open(io.BytesIO(data)) as image:
            return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
    return data


def expand(files: str | Path | Sequence[str | Path]) -> list[str]:
    """Return the paths that a pattern stands for.

    >>> expand("train-{08..10}.tar")
    ['train-08.tar', 'train-09.tar', 'train-10.tar']
    """
    if not isinstance(files, (str, Path)):
        found = [str(file) for file in files]
    elif braces := _BRACES.search(str(files)):
        first, last = braces.groups()
        before, after = str(files)[: braces.start()], str(files)[braces.end() :]
        numbers = [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
        found = [path for number in numbers for path in expand(before + number + after)]
    elif any(sign in str(files) for sign in "*?["):
        found = sorted(glob.glob(str(files)))
    else:
        found = [str(files)]
    if not found:
        raise DataError(str(files), expected="tar archives", got="no such file", do="check the pattern")
    return found
