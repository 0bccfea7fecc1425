"""Tokens of a text in files, read as windows of a fixed length through a memory map."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from rueda.errors import DataError, read_failure

TYPES = {"uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32, "int32": np.int32, "int64": np.int64}


class TokenFile(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Windows of the tokens of one file or several, for a language model.

    Example i of a file is ``(tokens[i * L : i * L + L], tokens[i * L + 1 : i * L + L + 1])``: the inputs, and as
    targets the token that follows each of them. Windows do not overlap, so that an epoch has every token once as a
    target; what is left of a file after its last whole window is omitted. Files are mapped into memory, so that they
    may be larger than it, and processes on one machine share them.

    Args:
        files: the file or the files. ``.npy`` files state the type of their tokens; ``.bin`` files hold uint16 tokens
            unless ``dtype`` says otherwise; any other file is read as bytes, of which each is a token.
        length: the number L of tokens in a window.
        dtype: ``uint8``, ``uint16``, ``uint32``, ``int32`` or ``int64``: the type of the tokens in a flat file.

    >>> from tempfile import NamedTemporaryFile
    >>> with NamedTemporaryFile(suffix=".txt") as file:
    ...     _ = file.write(b"hello, world"), file.flush()
    ...     windows = TokenFile(file.name, length=4)
    ...     [bytes(inputs.tolist()) + b"|" + bytes(targets.tolist()) for inputs, targets in windows]
    [b'hell|ello', b'o, w|, wo']
    """

    def __init__(self, files: Path | str | Sequence[Path | str], length: int, *, dtype: str | None = None) -> None:
        self.files = [Path(files)] if isinstance(files, (str, Path)) else [Path(file) for file in files]
        self.length, self._dtype = length, dtype
        if length < 1:
            raise DataError("length", expected="1 or more tokens", got=length, do="correct it")
        if dtype is not None and dtype not in TYPES:
            raise DataError("dtype", expected=" or ".join(TYPES), got=dtype, do="choose one of them")
        self._maps: list[NDArray[Any]] | None = None
        self.num_tokens = sum(len(tokens) for tokens in self._tokens())
        """the number of tokens in all files"""
        windows = [max(0, len(tokens) - 1) // length for tokens in self._tokens()]
        self._ends = np.cumsum(windows) if windows else np.zeros(1, np.int64)
        if len(self) == 0:
            expected = f"at least {length + 1} tokens in a file, for windows of {length}"
            raise DataError("tokens", expected=expected, got=self.num_tokens, do="choose a smaller length")

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = int(np.searchsorted(self._ends, index, side="right"))
        start = (index - (int(self._ends[number - 1]) if number else 0)) * self.length
        window = torch.from_numpy(self._tokens()[number][start : start + self.length + 1].astype(np.int64))
        return window[:-1], window[1:]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": None}  # another process maps the files itself

    def _tokens(self) -> list[NDArray[Any]]:
        if self._maps is None:
            self._maps = [_mapped(file, self._dtype) for file in self.files]
        return self._maps


def _mapped(file: Path, dtype: str | None) -> NDArray[Any]:
    try:
        if file.suffix == ".npy":
            tokens = np.load(file, mmap_mode="r", allow_pickle=False)
            if tokens.ndim != 1 or tokens.dtype.name not in TYPES:
                got = f"{list(tokens.shape)} of {tokens.dtype}"
                raise DataError(str(file), expected=f"one row of {' or '.join(TYPES)}", got=got, do="convert it")
            return np.asarray(tokens)
        kind = np.dtype(TYPES[dtype or ("uint16" if file.suffix == ".bin" else "uint8")])
        num_bytes = file.stat().st_size
        if num_bytes % kind.itemsize:
            do = "state the type of its tokens: dtype='uint32'"
            expected = f"whole {kind.name} tokens of {kind.itemsize} bytes"
            raise DataError(str(file), expected=expected, got=f"{num_bytes} bytes", do=do)
        return np.asarray(np.memmap(file, kind, "r")) if num_bytes else np.zeros(0, kind)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(str(file), expected="a file of tokens", got=read_failure(error), do="check the path") from None
