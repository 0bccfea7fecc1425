"""Download files over HTTP."""

from __future__ import annotations

import http.client
import io
import urllib.error
import urllib.request
from typing import BinaryIO

from rueda.errors import DataError
from rueda.tasks.datasets.published import Progress

SECONDS = 60.0  # timeout without a single byte
_BLOCK = 1 << 18


def fetch_to(address: str, file: BinaryIO, progress: Progress | None = None) -> None:
    """Download ``address`` into an open file.

    Raises:
        DataError: the server does not answer, or the disk is full.
    """
    try:
        with urllib.request.urlopen(address, timeout=SECONDS) as answer:
            length = answer.headers.get("Content-Length")
            total, done = int(length) if length else None, 0
            while block := answer.read(_BLOCK):
                _write(file, block, address)
                done += len(block)
                if progress is not None:
                    progress(address.rsplit("/", 1)[-1], done, total)
            if total is not None and done != total:
                raise http.client.IncompleteRead(b"", total - done)
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # closes the connection
        raise DataError(
            f"cannot download {address}: {reason}; try again, or fetch it elsewhere and use --from DIR"
        ) from None


def fetch(address: str, progress: Progress | None = None) -> bytes:
    """Download ``address`` into memory."""
    file = io.BytesIO()
    fetch_to(address, file, progress)
    return file.getvalue()


def _write(file: BinaryIO, block: bytes, address: str) -> None:
    try:
        file.write(block)
        file.flush()  # a full disk is reported here
    except OSError as error:
        raise DataError(
            f"cannot store {address}: {error.strerror}; free space or set RUEDA_CACHE to another folder"
        ) from None
