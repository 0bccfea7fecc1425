"""Attention without values that keeps for its backward pass what the kernels of devices keep.

``scaled_dot_product_attention`` runs on the *meta* device by its definition, which keeps a matrix of the length of the
sequence squared for each head. The kernels of CPUs and GPUs keep query, key, value, the output and one number for each
row (Dao et al. 2022, arXiv:2205.14135). With dropout a CPU computes by the definition as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class FusedAttention(TorchFunctionMode):
    """Computes attention of *meta* tensors as a fused kernel does, inside the block.

    >>> query = torch.empty(2, 4, 16, 8, device="meta", requires_grad=True)
    >>> with FusedAttention():
    ...     output = F.scaled_dot_product_attention(query, query, query, is_causal=True)
    >>> output.shape, type(output.grad_fn).__name__
    (torch.Size([2, 4, 16, 8]), 'ScaledDotProductFlashAttentionForCpuBackward0')
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function, or the kernel in its place."""
        if func is F.scaled_dot_product_attention and args[0].is_meta:
            return _attention(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _attention(
    by_definition: Callable[..., Any], query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, **options: Any,
) -> Any:  # fmt: skip
    if dropout_p > 0 or options.get("enable_gqa") or (attn_mask is not None and attn_mask.requires_grad):
        return by_definition(query, key, value, attn_mask, dropout_p, is_causal, **options)
    mask = None if attn_mask is None else torch.empty_like(attn_mask, dtype=query.dtype)
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return kernel(query, key, value, 0.0, is_causal, attn_mask=mask, scale=options.get("scale"))[0]
