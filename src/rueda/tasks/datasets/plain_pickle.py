"""Reading CIFAR-10's Python layout without running what a pickle may ask for.

A pickle is a small program: loading one from the net can call anything. These files need three names only (an array,
its type, its constructor), and even those are replaced by stand-ins that hold what they are given.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rueda.errors import DataError
from rueda.tasks.datasets.published import torn


class _Type:
    """Stands for numpy.dtype; only bytes are expected."""

    def __init__(self, code: Any = b"", *_: Any) -> None:
        self.code = code.decode() if isinstance(code, bytes) else str(code)

    def __setstate__(self, state: Any) -> None:
        """Take no notice: a byte has no order and no fields."""


class _Array:
    """Stands for numpy.ndarray and keeps its shape and bytes."""

    shape: tuple[int, ...] = ()
    content = b""

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Type, bool, bytes]) -> None:
        _, self.shape, kind, by_columns, self.content = state
        if kind.code not in ("u1", "|u1") or by_columns:
            raise pickle.UnpicklingError(f"expected bytes by rows, got {kind.code}")


def _make_array(*_: Any) -> _Array:
    return _Array()


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        numpy_cores = ("numpy.core.multiarray", "numpy._core.multiarray")
        if module in numpy_cores and name == "_reconstruct":
            return _make_array
        if module == "numpy" and name in ("ndarray", "dtype"):
            return _Array if name == "ndarray" else _Type
        if (module, name) == ("_codecs", "encode"):  # how newer Pythons write bytes in old pickles
            return lambda text, encoding: text.encode("latin1")
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def read_batch(content: bytes, path: Path) -> tuple[list[int], NDArray[np.uint8]]:
    """Read the labels and the images [N, 3072] of one file."""
    try:
        batch = _Reader(io.BytesIO(content), encoding="bytes").load()
        batch = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        array = batch["data"]
        images = np.frombuffer(array.content, dtype=np.uint8).reshape(array.shape)
        return [int(label) for label in batch["labels"]], images
    except DataError:
        raise
    except Exception as error:  # a torn pickle can raise almost anything
        raise torn(path, "cifar-10", f"{type(error).__name__}: {error}") from None
