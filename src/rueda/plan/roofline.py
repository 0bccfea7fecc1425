"""The roofline of a device on which nothing was measured: the least and the expected time of a training step there.

The step has counted work (:class:`rueda.records.profile.StepWork`), the device has peaks that its manufacturer states.
No step of B examples takes less than (Williams, Waterman and Patterson 2009)

    least(B) = max(B flops / peak, (2 B saved + 2 update) / bandwidth)

bytes being written once and read once, and none less than the host's launches (:mod:`rueda.plan.compute`). Real
trainings reach a fraction of the peaks. The expected time uses the fractions that NVIDIA's own ResNet-50 reaches, with
its work counted in the same way:

    expected(B) = max(B flops / (0.57 peak), (2 B saved + 2 update) / (0.079 bandwidth))

- 0.57: 367 images/s of 24.3 Gflop in float32 on a V100 (15.7 Tflop/s).
- 0.079: 938 images/s of 85.9 MB, written and read, in TF32 on an A100 of 80 GB (2,039 GB/s), where the flops are at
  15 % of their peak. It is that small because each operation reads its inputs from memory and writes its result there:
  all operations together move 785 MB an image, 36 % of the bandwidth. Fused operations may do better.

Both speeds are from the ResNet-50 v1.5 for PyTorch of NVIDIA's DeepLearningExamples (one GPU). Neither time knows of
kernels that are too small to fill the device, nor of reading data: small models are slower than expected.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from math import inf

from rueda.errors import ProfileError, RecipeError
from rueda.records.profile import Profile, StepWork
from rueda.records.recipe.recipe import Recipe

REACHED_FLOPS = 0.57
"""the fraction of the peak flops that a training is expected to reach"""
REACHED_BANDWIDTH = 0.079
"""the fraction of the memory bandwidth that the counted bytes are expected to reach"""
_HALF = ("bf16", "fp16")


@dataclass(frozen=True, kw_only=True)
class DevicePeaks:
    """What a device could do at most, as its manufacturer states it: bytes and dense flops per second."""

    memory_bandwidth: float
    float32: float
    """without tensor cores"""
    tf32: float | None = None
    """float32 on tensor cores; None: it has none for it"""
    bf16: float | None = None
    fp16: float | None = None
    float64: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not 0 < value < inf:
                raise ProfileError(f"peaks: {name}", expected="more than 0 and finite", got=value, do="correct it")

    def precision_of(self, recipe: Recipe) -> str:
        """Return the precision in which a recipe would train on this device: one of the fields of the flops.

        ``auto`` is bf16 where there are tensor cores for it. Half precision without them is no faster than float32.

        >>> volta = DevicePeaks(memory_bandwidth=900e9, float32=15.7e12, fp16=125e12)
        >>> [volta.precision_of(Recipe(precision=name)) for name in ("auto", "fp16", "bf16")]
        ['float32', 'fp16', 'float32']
        """
        name = ("bf16" if self.bf16 else "float32") if recipe.precision == "auto" else recipe.precision
        if name in _HALF and getattr(self, name) is None:
            name = "float32"
        return "tf32" if name == "float32" and recipe.tf32 and self.tf32 else name


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """A model on a device: the least and the expected time of a step, apart from the host's launches."""

    device: str
    precision: str
    peak: float | None
    """flops per second in this precision; None: not known, so that only the bytes count"""
    bandwidth: float
    work: StepWork

    def least(self, batch: int) -> float:
        """Return the seconds below which no step of one worker can be: at the peaks themselves."""
        return max(self._flops_seconds(batch), self._bytes_seconds(batch))

    def expected(self, batch: int) -> float:
        """Return the seconds at the fractions of the peaks that a training reaches."""
        return max(self._flops_seconds(batch) / REACHED_FLOPS, self._bytes_seconds(batch) / REACHED_BANDWIDTH)

    def _flops_seconds(self, batch: int) -> float:
        return 0.0 if self.peak is None else batch * self.work.flops / self.peak

    def _bytes_seconds(self, batch: int) -> float:
        # Half precision is used inside operations: activations shrink, parameters do not.
        saved = self.work.saved_bytes / 2 if self.precision in _HALF else self.work.saved_bytes
        return 2 * (batch * saved + self.work.update_bytes) / self.bandwidth


def roofline_of(profile: Profile, device: str, peaks: DevicePeaks | None) -> Roofline | None:
    """Return the roofline of a profiled model on another device; None if its work or the peaks are not known."""
    if profile.work is None or peaks is None:
        return None
    precision = peaks.precision_of(_recipe(profile.recipe) or Recipe())
    return Roofline(
        device=device or "device", precision=precision, peak=getattr(peaks, precision),
        bandwidth=peaks.memory_bandwidth, work=profile.work,
    )  # fmt: skip


def is_same_device(measured: str, device: str) -> bool:
    """Tell whether a profile was measured on a device, by the name that torch reports for it.

    >>> is_same_device("NVIDIA A100-SXM4-80GB", "A100"), is_same_device("cpu (2 threads of Intel Xeon)", "A100")
    (True, False)
    >>> is_same_device("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "A100")
    False
    """
    names, known = (set(re.split(r"[\s_-]+", name.lower())) for name in (device, measured))
    return bool(device) and names <= known and "mig" not in known


@cache
def _recipe(text: str) -> Recipe | None:
    try:
        return Recipe.from_toml(text)
    except RecipeError:
        return None
