"""Where the files of a tar archive are: a reader of tar headers that skips the contents.

It knows the formats that writers of shards use: ustar, GNU's long names and large sizes, and the paths and sizes of pax
headers (POSIX.1-2001, "pax interchange format"). A member of another kind, such as a folder or a link, is skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from rueda.errors import DataError

BLOCK = 512
_WINDOW = 1 << 20
_FILE, _LONG_NAME, _PAX, _PAX_GLOBAL = (b"0", b"\0", b"7"), b"L", b"x", b"g"


class Member(NamedTuple):
    """A file of an archive."""

    name: str
    offset: int
    size: int


def members(path: str) -> Iterator[Member]:
    """Iterate over the files of an archive.

    Raises:
        DataError: it is no tar archive, is compressed, or ends too early.
    """
    with open(path, "rb", buffering=0) as file:
        length = os.fstat(file.fileno()).st_size
        window, start = b"", 0  # a part of the archive, and where it begins
        position, long_name, long_size = 0, "", -1
        while position + BLOCK <= length:
            place = position - start
            if not 0 <= place <= len(window) - BLOCK:
                # Small members follow each other within a window; for large ones one block is read.
                window, start = os.pread(file.fileno(), _window(position, start, len(window)), position), position
                place = 0
            header = window[place : place + BLOCK]
            if header[:1] == b"\0" and not any(header):
                return  # the end of the archive
            if header[257:262] != b"ustar" and not _checksum_fits(header):
                raise _damaged(path, position)
            size, kind = _number(header[124:136], path, position), header[156:157]
            data = position + BLOCK
            if kind in (_LONG_NAME, _PAX):
                text = os.pread(file.fileno(), size, data)
                if kind == _LONG_NAME:
                    long_name = text.rstrip(b"\0").decode("utf-8", "surrogateescape")
                else:
                    records = _pax(text)
                    long_name = records.get("path", long_name)
                    long_size = int(records.get("size", long_size))
            elif kind != _PAX_GLOBAL:
                size = long_size if long_size >= 0 else size
                if data + size > length:
                    raise _damaged(path, position)
                if kind in _FILE:
                    yield Member(long_name or _name(header), data, size)
                long_name, long_size = "", -1
            position = data + -(-size // BLOCK) * BLOCK
        if position != length or length == 0:
            raise _damaged(path, position)


def _window(position: int, start: int, length: int) -> int:
    return _WINDOW if position <= start + length + _WINDOW // 4 else BLOCK


def _name(header: bytes) -> str:
    name = header[:100].partition(b"\0")[0]
    if header[345:346] != b"\0" and header[257:263] == b"ustar\0":
        name = header[345:500].partition(b"\0")[0] + b"/" + name
    return name.decode("utf-8", "surrogateescape")


def _number(field: bytes, path: str, position: int) -> int:
    if field[0] & 0x80:  # GNU's binary numbers, for sizes from 8 GiB on
        return int.from_bytes(field[1:], "big")
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        raise _damaged(path, position) from None


def _pax(text: bytes) -> dict[str, str]:
    records = {}
    while text:
        length, _, _ = text.partition(b" ")
        if not length.isdigit():
            break
        record, text = text[: int(length)], text[int(length) :]
        name, _, value = record[len(length) + 1 : -1].partition(b"=")
        records[name.decode()] = value.decode("utf-8", "surrogateescape")
    return records


def _checksum_fits(header: bytes) -> bool:
    try:
        return int(header[148:156].strip(b" \0"), 8) == sum(header) - sum(header[148:156]) + 8 * 32
    except ValueError:
        return False


def _damaged(path: str, position: int) -> DataError:
    do = "decompress it, or write it again"
    return DataError(path, expected="an uncompressed tar archive", got=f"no header at byte {position}", do=do)
