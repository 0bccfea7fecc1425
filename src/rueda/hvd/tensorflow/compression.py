"""Compression of tensors for transfer: the classes of ``horovod.torch``, which convert TensorFlow's tensors too."""

from __future__ import annotations

from rueda.hvd.torch.compression import BF16Compressor, Compression, Compressor, FP16Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
