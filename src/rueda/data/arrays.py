"""A data set that fits in memory: one tensor of inputs, one of targets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from rueda.data.partition import check_examples
from rueda.errors import DataError


class Arrays:
    """Inputs [N, ...] and targets [N, ...] in memory, and the normalisation of ``uint8`` inputs.

    Inputs of type ``uint8`` (usually images [N, C, H, W]) are stored as bytes; a batch is converted to ``(x / 255 -
    mean) / std`` with one mean and one standard deviation per channel (dimension 1). Other inputs are used as they are.

    Args:
        inputs: tensor or numpy array whose first dimension counts the examples.
        targets: tensor or numpy array of the same length; integers are class labels and become int64.
        mean: mean of ``x / 255``, one number for all channels or one per channel.
        std: standard deviation of ``x / 255``, likewise.
        names: names of the classes; labels must be below their number.
        num_classes: number of classes, if there are no names.

    >>> data = Arrays(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 1, 0]), mean=[0.5], std=[0.5])
    >>> len(data), data.floats(data.inputs[:1]).flatten().tolist()
    (4, [-1.0, -1.0, -1.0, -1.0])
    """

    def __init__(
        self,
        inputs: torch.Tensor | NDArray[np.generic],
        targets: torch.Tensor | NDArray[np.generic],
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        names: Sequence[str] | None = None,
        num_classes: int | None = None,
    ) -> None:
        self.inputs = _tensor(inputs, "inputs").contiguous()
        self.targets = _tensor(targets, "targets").contiguous()
        self.mean = None if mean is None else tuple(float(value) for value in mean)
        self.std = None if std is None else tuple(float(value) for value in std)
        self.names = None if names is None else tuple(names)
        self.num_classes = num_classes if names is None else len(names)
        self._kept: tuple[tuple[torch.dtype, torch.device], torch.Tensor, torch.Tensor] | None = None
        self._check()

    def __len__(self) -> int:
        return int(self.inputs.shape[0])

    def __repr__(self) -> str:
        kind = str(self.inputs.dtype).removeprefix("torch.")
        return f"Arrays({len(self)} examples of {kind} {list(self.inputs.shape[1:])})"

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.inputs.device

    def subset(self, indices: Sequence[int] | torch.Tensor | NDArray[np.int64] | slice) -> Arrays:
        """Return the chosen examples as a new data set."""
        chosen: slice | torch.Tensor
        chosen = indices if isinstance(indices, slice) else torch.as_tensor(indices, dtype=torch.int64)
        if isinstance(chosen, torch.Tensor) and chosen.numel():
            do = "choose existing examples"
            _check_range("subset", chosen, len(self), expected=f"indices from 0 to {len(self) - 1}", do=do)
        return self._with(self.inputs[chosen], self.targets[chosen])

    def to(self, device: torch.device | str) -> Arrays:
        """Return the data set on ``device``; its batches are then made there, without a copy from the host."""
        return self._with(self.inputs.to(device), self.targets.to(device))

    def floats(
        self, inputs: torch.Tensor, dtype: torch.dtype = torch.float32, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Convert raw inputs: ``uint8`` to ``(x / 255 - mean) / std``, floats to ``dtype``; others are not changed.

        The formula is computed as one multiplication and one addition: ``x * (1 / (255 std)) - mean / std``.

        Args:
            inputs: raw inputs [B, ...], such as a batch of those in memory.
            dtype: the type of the result where the inputs are ``uint8`` or floats.
            out: a tensor for the result, of its shape and type; by default a new one.
        """
        if inputs.dtype != torch.uint8:
            wanted = dtype if inputs.is_floating_point() else inputs.dtype
            return inputs.to(wanted) if out is None else out.copy_(inputs)
        scale, shift = self._scale_and_shift(dtype, inputs.device)
        floats = inputs.to(dtype) if out is None else out.copy_(inputs)
        return torch.addcmul(shift, floats, scale, out=floats)

    def _scale_and_shift(self, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scale and shift, expanded to the shape of one example, because addcmul is fastest then."""
        if self._kept is None or self._kept[0] != (dtype, device):
            shape = self.inputs.shape[1:]
            per_channel = [-1] + [1] * (len(shape) - 1) if shape else []
            mean, std = (
                torch.tensor(values, dtype=torch.float64).reshape(per_channel).expand(shape)
                for values in (self.mean or [0.0], self.std or [1.0])
            )
            scale, shift = (1 / (255 * std), -mean / std)
            self._kept = (
                (dtype, device),
                scale.to(device, dtype).contiguous(),
                shift.to(device, dtype).contiguous(),
            )
        return self._kept[1:]

    def _with(self, inputs: torch.Tensor, targets: torch.Tensor) -> Arrays:
        return Arrays(inputs, targets, mean=self.mean, std=self.std, names=self.names, num_classes=self.num_classes)

    def _check(self) -> None:
        if self.inputs.ndim == 0 or self.targets.ndim == 0:
            raise DataError("data", expected="one row an example", got="a single number", do="add a dimension")
        if len(self.inputs) != len(self.targets):
            do = "check that both were read whole"
            raise DataError("targets", expected=f"as many as inputs ({len(self.inputs)})", got=len(self.targets), do=do)
        check_examples(len(self.inputs))
        if self.inputs.numel() == 0:
            raise DataError(
                "inputs", expected="values in each example", got=list(self.inputs.shape), do="check the shape"
            )
        channels = int(self.inputs.shape[1]) if self.inputs.ndim > 1 else 1
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is None:
                continue
            if len(values) not in (1, channels):
                raise DataError(name, expected=f"1 or {channels} numbers", got=len(values), do="give one a channel")
            if self.inputs.dtype != torch.uint8:
                raise DataError(name, expected="inputs of uint8", got=self.inputs.dtype, do="normalise them yourself")
            if name == "std" and min(values) <= 0:
                raise DataError(name, expected="numbers above 0", got=min(values), do="correct it")
        self._check_labels()

    def _check_labels(self) -> None:
        if self.targets.is_floating_point():
            if self.num_classes is not None:
                raise DataError("labels", expected="whole numbers", got=self.targets.dtype, do="convert them to int64")
            return
        self.targets = self.targets.to(torch.int64)
        if self.num_classes is not None:
            do = "correct the labels or the number of classes"
            _check_range("labels", self.targets, self.num_classes, expected=f"from 0 to {self.num_classes - 1}", do=do)


def _check_range(what: str, values: torch.Tensor, end: int, *, expected: str, do: str) -> None:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= end:
        raise DataError(what, expected=expected, got=low if low < 0 else high, do=do)


def _tensor(values: object, what: str) -> torch.Tensor:
    if isinstance(values, torch.Tensor):
        return values.detach()
    if isinstance(values, np.ndarray):
        # torch needs a writable array, so a read-only one (memory-mapped, frombuffer) is copied.
        return torch.from_numpy(np.require(values, requirements=["C", "W"]))
    raise DataError(what, expected="a tensor or a numpy array", got=type(values).__name__, do="convert it first")
