"""Compression of tensors for transfer: half the bytes, at the price of half precision while they are summed.

The classes take the tensors of every framework: of torch, TensorFlow and JAX.
"""

from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """The interface of a compression, and the one that changes nothing; it is used as a class, without an instance."""

    transfer_dtype: torch.dtype | None = None  # floating-point tensors are sent in this type; None: in their own

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Return the tensor to send, and the context that :meth:`decompress` needs.

        >>> tensor, context = FP16Compressor.compress(torch.ones(3))
        >>> tensor.dtype, FP16Compressor.decompress(tensor, context).dtype
        (torch.float16, torch.float32)
        """
        if cls.transfer_dtype is None or not _is_floating_point(tensor):
            return tensor, None
        return _converted(tensor, cls.transfer_dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """Convert a received tensor back to its original type."""
        return tensor if ctx is None else _converted(tensor, ctx)


def _is_floating_point(tensor: Any) -> bool:
    if isinstance(tensor, torch.Tensor):
        return tensor.is_floating_point()
    return "float" in str(tensor.dtype)


def _converted(tensor: Any, dtype: Any) -> Any:
    if isinstance(tensor, torch.Tensor):
        return tensor.to(dtype)
    if isinstance(dtype, torch.dtype):
        dtype = str(dtype).removeprefix("torch.")
    if hasattr(tensor, "astype"):  # of JAX
        return tensor.astype(dtype)
    import tensorflow as tf

    return tf.cast(tensor, dtype)


class NoneCompressor(Compressor):
    """Sends tensors unchanged."""


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16."""

    transfer_dtype = torch.float16


class BF16Compressor(Compressor):
    """Sends floating-point tensors as bfloat16: 8 bits of precision, but float32's range, so that nothing overflows."""

    transfer_dtype = torch.bfloat16


class Compression:
    """The available compressions: ``Compression.none``, ``Compression.fp16`` and ``Compression.bf16``."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
