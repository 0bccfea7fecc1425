"""How a GPU computes: the precision of a recipe that leaves it open, TF32, and cuDNN's choice of algorithms.

=================== ==================================================================================================
``precision``       ``auto`` is bf16 mixed precision on a GPU with bf16 tensor cores (NVIDIA Ampere and later, AMD
                    CDNA), which about doubles the speed and, unlike fp16, has float32's range; float32 on every other
                    device. A CPU never computes in lower precision unless the recipe says so.
``tf32``            float32 products and convolutions use TF32 tensor cores: float32's range with 10 bits of mantissa.
                    What remains in float32 under bf16 (the loss, norms) is not affected.
``cudnn_benchmark`` cuDNN times its algorithms at the first step of each input shape and keeps the fastest. The shapes
                    of a training are constant. The choice may differ between two runs, and so may the last digits.
=================== ==================================================================================================
"""

from __future__ import annotations

import torch

from rueda.records import Recipe

_TENSOR_CORES_WITH_BF16 = (8, 0)


def settled(recipe: Recipe, device: torch.device) -> Recipe:
    """Return the recipe with the precision that ``auto`` means on this device."""
    if recipe.precision != "auto":
        return recipe
    return recipe.change(precision="bf16" if has_fast_bf16(device) else "float32")


def has_fast_bf16(device: torch.device) -> bool:
    """Return whether a device computes faster in bf16 than in float32."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _TENSOR_CORES_WITH_BF16


def apply(recipe: Recipe, device: torch.device) -> None:
    """Set torch's global options for the recipe; on a device other than a CUDA GPU they are left as they are."""
    if device.type != "cuda":
        return
    torch.set_float32_matmul_precision("high" if recipe.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = recipe.tf32
    torch.backends.cudnn.benchmark = recipe.cudnn_benchmark


def remark(given: Recipe, used: Recipe) -> str | None:
    """Return a line for the user if ``auto`` chose a lower precision."""
    if given.precision == used.precision or used.precision == "float32":
        return None
    return f"precision {used.precision}, which this GPU computes faster; --set precision=float32 for full precision"
