"""Compression of gradients on the wire: half the bytes, at the price of half precision while they are summed."""

from __future__ import annotations

import torch
from torch import Tensor


class Compressor:
    """What a compression does; both methods are static, so a class is its own instance."""

    wire_type: torch.dtype | None = None  # the type that floating-point tensors travel in; None: their own

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, torch.dtype | None]:
        """Give the tensor to send and what :meth:`decompress` needs to know.

        >>> tensor, context = FP16Compressor.compress(torch.ones(3))
        >>> tensor.dtype, FP16Compressor.decompress(tensor, context).dtype
        (torch.float16, torch.float32)
        """
        if cls.wire_type is None or not tensor.is_floating_point():
            return tensor, None
        return tensor.to(cls.wire_type), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Tensor, ctx: torch.dtype | None) -> Tensor:
        """Give the tensor its own type back."""
        return tensor if ctx is None else tensor.to(ctx)


class NoneCompressor(Compressor):
    """Tensors travel as they are."""


class FP16Compressor(Compressor):
    """Floating-point tensors travel as float16."""

    wire_type = torch.float16


class BF16Compressor(Compressor):
    """Floating-point tensors travel as bfloat16: float32's range, so nothing overflows, with 8 bits of precision."""

    wire_type = torch.bfloat16


class Compression:
    """The choice: ``Compression.none``, ``.fp16`` or ``.bf16``."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
