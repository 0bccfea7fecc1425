"""Read CIFAR-10's Python layout without executing code from the pickle.

A pickle is a program: unpickling a downloaded file can call any function. These files need only three names (an array,
its type and its constructor); every other name is refused.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rueda.tasks.datasets.published import corrupt

_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): lambda text, encoding: text.encode("latin1"),  # newer Pythons write bytes so
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return lambda kind, shape, code: np.ndarray(shape, code)
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _ALLOWED[module, name]


def read_batch(content: bytes, path: Path) -> tuple[list[int], NDArray[np.uint8]]:
    """Return the labels and the images [N, 3072] of one file."""
    try:
        batch = _Reader(io.BytesIO(content), encoding="bytes").load()
        batch = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        images: NDArray[np.uint8] = batch["data"]
        if images.dtype != np.uint8:
            raise pickle.UnpicklingError(f"expected bytes, got {images.dtype}")
        return [int(label) for label in batch["labels"]], images
    except Exception as error:  # a corrupt pickle can raise almost any exception
        raise corrupt(path, "cifar-10", f"{type(error).__name__}: {error}") from None
