"""Model flops utilisation: which share of the peak of its GPUs a training uses for the model itself.

    MFU = flops per example * examples/s / (peak flops of a GPU * workers)

(Chowdhery et al. 2022, PaLM, appendix B). The flops of an example are those of one forward and one backward pass; what
is computed twice to save memory, to measure noise, or for an evaluation does not count. They are counted once, from the
shapes of the tensors (:mod:`rueda.train.counting`).

The peak is the one that the manufacturer states for dense matrices in the precision of the recipe: that of tensor cores
with float32 accumulation for bf16, fp16 and TF32. It is known for the GPUs of a table. For others, for a part of a GPU
(MIG), and for CPUs it is unknown, and so is the MFU, unless ``RUEDA_PEAK_TFLOPS`` states the peak of one worker.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import nn

from rueda.data.nest import map_tensors
from rueda.records import Recipe
from rueda.tasks import Task
from rueda.train.counting import count_pass, first_line, on_meta
from rueda.train.micro_batches import MicroBatch
from rueda.world.variables import read_number

PEAK = "RUEDA_PEAK_TFLOPS"


class Peaks(NamedTuple):
    """Peak teraflops of a GPU, dense, by precision; None where it has no tensor cores for it or none are stated."""

    bf16: float | None
    fp16: float | None
    tf32: float | None = None
    float32: float | None = None
    float64: float | None = None


def _halves(half: float, tf32: float, float32: float | None = None, float64: float | None = None) -> Peaks:
    """Return the peaks of a GPU whose bf16 is as fast as its fp16."""
    return Peaks(half, half, tf32, float32, float64)


def _geforce(float32: float) -> Peaks:
    """Return the peaks of a GeForce 30, 40 or 50: fp16 and bf16 have twice that of float32, TF32 the same."""
    return _halves(2 * float32, float32, float32)


_H100, _H100_NVL = _halves(989.4, 494.7, 66.9, 66.9), _halves(835.5, 417.7, 60.0, 60.0)
_TABLE: dict[str, Peaks] = {
    "V100 SXM2": Peaks(None, 125.0, None, 15.7, 7.8),
    "V100 PCIE": Peaks(None, 112.0, None, 14.0, 7.0),
    "V100S PCIE": Peaks(None, 130.0, None, 16.4, 8.2),
    "T4": Peaks(None, 65.0, None, 8.1),
    "A100": _halves(312.0, 156.0, 19.5, 19.5),
    "A30": _halves(165.0, 82.0, 10.3, 10.3),
    "A40": _halves(149.7, 74.8, 37.4),
    "A10": _halves(125.0, 62.5, 31.2),
    "A10G": _halves(70.0, 35.0),
    "RTX A6000": _halves(154.8, 77.4, 38.7),
    "L4": _halves(121.0, 60.0, 30.3),
    "L40": _halves(181.0, 90.5, 90.5),
    "L40S": _halves(362.0, 183.0, 91.6),
    "RTX 6000 Ada": _halves(364.2, 182.1, 91.1),
    "H100 HBM3": _H100,
    "H100 PCIe": _halves(756.0, 378.0, 51.0, 51.0),
    "H100 NVL": _H100_NVL,
    "H200": _H100,
    "H200 NVL": _H100_NVL,
    "GH200": _H100,
    "B200": _halves(2250.0, 1125.0),
    "MI250X": Peaks(191.5, 191.5, None, 47.9, 47.9),  # of one of its two dies, which is one device
    "MI300X": _halves(1307.4, 653.7, 163.4, 163.4),
    **{
        f"RTX {name}": _geforce(float32)
        for name, float32 in {
            "3060": 12.7, "3060 Ti": 16.2, "3070": 20.3, "3070 Ti": 21.7, "3080": 29.8, "3080 Ti": 34.1, "3090": 35.6,
            "3090 Ti": 40.0, "4060": 15.1, "4060 Ti": 22.1, "4070": 29.1, "4070 SUPER": 35.5, "4070 Ti": 40.1,
            "4070 Ti SUPER": 44.1, "4080": 48.7, "4080 SUPER": 52.2, "4090": 82.6, "5070": 30.9, "5070 Ti": 43.9,
            "5080": 56.3, "5090": 104.8,
        }.items()
    },
}  # fmt: skip
"""by the words that identify a GPU in the name that torch reports; from the manufacturers' data sheets"""
_OTHER_CHIPS = {"mig", "laptop", "mobile", "max", "d"}
"""words of names that share a GPU's number but not its speed: slices, chips of notebooks, RTX 4090 D"""


def _words(name: str) -> set[str]:
    return set(re.split(r"[\s_-]+", name.lower()))


def peak_flops(name: str, recipe: Recipe) -> float | None:
    """Return the peak flops per second of a GPU in the precision of a recipe; None if it is unknown.

    >>> peak_flops("NVIDIA A100-SXM4-80GB", Recipe(precision="bf16"))
    312000000000000.0
    >>> peak_flops("NVIDIA A100-SXM4-80GB MIG 1g.10gb", Recipe(precision="bf16"))
    """
    words = _words(name)
    known = [key for key in _TABLE if _words(key) <= words]
    if not known or words & _OTHER_CHIPS:
        return None
    peaks = _TABLE[max(known, key=lambda key: len(_words(key)))]  # an RTX 4070 Ti is not an RTX 4070
    uses_tf32 = recipe.precision == "float32" and recipe.tf32 and peaks.tf32 is not None
    peak: float | None = getattr(peaks, "tf32" if uses_tf32 else recipe.precision, None)
    return None if peak is None else peak * 1e12


def worker_peak(device: torch.device, recipe: Recipe, environ: Mapping[str, str]) -> float | None:
    """Return the peak flops per second of one worker: that of the variable, or of its GPU; None if it is unknown."""
    if text := environ.get(PEAK):
        return 1e12 * read_number(
            PEAK, text, lambda peak: 0 < peak < math.inf, expected="the peak teraflops of one worker",
            do="correct or unset it",
        )  # fmt: skip
    return peak_flops(torch.cuda.get_device_name(device), recipe) if device.type == "cuda" else None


class Utilisation:
    """Computes the MFU of a training.

    Args:
        task: provides the loss.
        model: the model without wrappers.
        peak: the peak flops per second of one worker.
        workers: the number of GPUs that compute.
    """

    def __init__(self, task: Task, model: nn.Module, *, peak: float, workers: int) -> None:
        self.remark: str | None = None
        """a line for the user if the flops cannot be counted"""
        self._task, self._model, self._peak, self._workers = task, model, peak, workers
        self._shapes: MicroBatch | None = None
        self._per_example: float | None = None

    def note_shapes(self, first: MicroBatch) -> None:
        """Keep the shapes of the first micro-batch; later calls do nothing."""
        if self._shapes is None:
            self._shapes = first._replace(batch=map_tensors(on_meta, first.batch))

    def at(self, images_per_second: float) -> float | None:
        """Return the MFU at this throughput of all workers; the first call counts the flops."""
        if self._per_example is None and self._shapes is not None and self.remark is None:
            try:
                counted = count_pass(self._task, self._model, self._shapes.batch)
                self._per_example = counted.flops / self._shapes.num_examples
            except Exception as error:  # the code of the model or of its loss needs values
                self.remark = f"model flops utilisation is unknown: the model cannot be traced ({first_line(error)})"
        if self._per_example is None:
            return None
        return self._per_example * images_per_second / (self._peak * self._workers)
