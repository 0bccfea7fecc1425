"""The objective: mean loss and error of a model on examples in memory, as a function of its parameters.

Everything in :mod:`rueda.examine` is a question about one function of the parameters w,

    f(w) = 1/N sum_n loss(model(x_n; w), y_n)

and is evaluated through this class. The examples are read once. They pass through the model in chunks that fit the
processor's cache, in evaluation mode; the chunks' sums are added in float64, always in the same order, so a point has
the same value on every worker. The model is restored afterwards (:mod:`rueda.examine.objective.temporary_parameters`).
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rueda.errors import ExamineError
from rueda.examine.objective.chunks import arranged, best_chunk, runs_in, wanted_order
from rueda.examine.objective.examples import Inputs, each, parts, read_loader, take
from rueda.examine.objective.fewer_passes import fewer_passes
from rueda.examine.objective.temporary_parameters import TemporaryParameters
from rueda.nn import recalibrate
from rueda.world import World

PerExample = Callable[[Tensor, Tensor], Tensor]
RECALIBRATION_BATCH = 256


@dataclass(frozen=True)
class Values:
    """Mean loss and error of the model at a point."""

    loss: float
    """the mean over the examples; nan or inf where the network overflows"""
    error: float | None
    """the fraction of wrong predictions; None without a metric"""


class Objective:
    """Mean loss of a model on examples in memory, as a function of its parameters.

    Use it as a context manager around many evaluations, so that the parameters are copied once. Every method also works
    without one. Points and directions are lists of tensors, one per parameter, in the order of ``names``.

    Args:
        model: any module; it is restored bit for bit, also after an exception.
        losses: (outputs, targets) -> the loss of each example [B], or their mean or sum (by its ``reduction``).
        inputs: [N, ...], or a tuple of such tensors for a model that takes several.
        targets: [N, ...].
        correct: (outputs, targets) -> whether each prediction is right, [B]; None if the task has no such metric.
        chunk: examples per forward pass; by default as many as fit the cache.
        device: where to compute; by default where the model is. A device without float64 (MPS) leaves it to the CPU.

    >>> model = nn.Linear(1, 1, bias=False).double()
    >>> _ = model.weight.data.fill_(3.0)
    >>> x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    >>> half_square = lambda outputs, targets: 0.5 * (outputs - targets).square().sum(1)
    >>> with Objective(model, half_square, x, torch.zeros_like(x)) as objective:  # f(w) = 1.25 w^2
    ...     objective.move([[torch.ones(1, 1)]], [-1.0])
    ...     objective.value()
    5.0
    >>> model.weight.item()
    3.0
    """

    def __init__(
        self,
        model: nn.Module,
        losses: PerExample,
        inputs: Inputs,
        targets: Tensor,
        *,
        correct: PerExample | None = None,
        chunk: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self.num_examples = _count(inputs, targets)
        if chunk is not None and chunk < 1:
            raise ExamineError("chunk", expected="1 or more examples", got=chunk, do="correct it")
        self._losses, self._correct = losses, correct
        self._temporary = TemporaryParameters(model, device=device)
        self.device = self._temporary.device
        self.dtype = self._temporary.origin[0].dtype
        self.model, self.names = self._temporary.model, self._temporary.names
        self.leaves = self._temporary.owned
        """the model's own parameters, at the current point; autograd differentiates with respect to them"""
        inputs = each(lambda part: part.to(self.device), inputs)
        self.targets = targets.to(self.device)
        self._temporary.order = wanted_order(self.model)
        with self._temporary:
            runs = runs_in(self._temporary.order, self.model, inputs)
        if not runs:
            self._temporary.order = torch.contiguous_format
        self.inputs = arranged(inputs, self._temporary.order)
        with self._temporary, _fitting():
            self.chunk = chunk or best_chunk(self.model, self.inputs, self.num_examples)
        with self, _fitting(), torch.inference_mode():  # a loss that does not fit the model fails here, on two examples
            self.total(self.outputs(take(self.inputs, 0, 2)), self.targets[:2])
            self._forward = fewer_passes(self.model, take(self.inputs, 0, 2))

    @classmethod
    def from_loader(
        cls, model: nn.Module, losses: PerExample, loader: Iterable[Any], *, limit: int | None = None, **options: Any
    ) -> Objective:
        """Read a loader of ``(inputs, targets)`` batches into memory and return an objective on these examples.

        Args:
            model: as for the class.
            losses: as for the class.
            loader: a DataLoader, or any iterable of batches; only the first two elements of a batch are used.
            limit: the number of examples to read; None reads all.
            options: ``correct``, ``chunk`` and ``device``, as for the class.
        """
        inputs, targets = read_loader(loader, limit)
        return cls(model, losses, inputs, targets, **options)

    def with_examples(self, inputs: Inputs, targets: Tensor) -> Objective:
        """Return an objective of the same model on other examples (test data); both share the current point."""
        other = copy.copy(self)  # both share the temporary parameters
        other.num_examples = _count(inputs, targets)
        other.inputs = arranged(each(lambda part: part.to(self.device), inputs), self._temporary.order)
        other.targets = targets.to(self.device)
        other.chunk = min(self.chunk, other.num_examples)
        return other

    def fingerprint(self) -> str:
        """Return a checksum of everything that determines the values: parameters, buffers, examples, chunk size."""
        weights, examples = [*self.origin, *self.model.buffers()], [*parts(self.inputs), self.targets]
        return f"{checksum(weights)}-{checksum(examples)}-{self.chunk}"

    # The current point.

    @property
    def origin(self) -> list[Tensor]:
        """The model's original parameters, around which surfaces are centred; do not write to them."""
        return self._temporary.origin

    @property
    def num_parameters(self) -> int:
        """The number of scalar parameters."""
        return sum(one.numel() for one in self.origin)

    def __enter__(self) -> Objective:
        self._temporary.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._temporary.__exit__()

    def set(self, point: Sequence[Tensor] | Tensor) -> None:
        """Set the parameters to a point: a list of tensors, or one flat vector [num_parameters]."""
        self._temporary.set(self.split(point) if isinstance(point, Tensor) else point)

    def move(self, directions: Sequence[Sequence[Tensor]], steps: Sequence[float]) -> None:
        """Set the parameters to origin + sum of steps x directions."""
        self._temporary.move(directions, steps)

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """Concatenate tensors to one vector [num_parameters] in float64."""
        return torch.cat([one.detach().reshape(-1).double() for one in tensors])

    def split(self, vector: Tensor) -> list[Tensor]:
        """Split a vector [num_parameters] into tensors of the parameters' shapes."""
        if vector.shape != (self.num_parameters,):
            do = "flatten a point of the same model"
            raise ExamineError("a flat point", expected=f"shape [{self.num_parameters}]", got=list(vector.shape), do=do)
        parts = torch.split(vector, [one.numel() for one in self.origin])
        return [part.view(one.shape) for part, one in zip(parts, self.origin, strict=True)]

    # The values at the current point.

    def value(self) -> float:
        """Return the mean loss."""
        return self.values().loss

    def values(self) -> Values:
        """Return mean loss and error."""
        loss, num_correct = 0.0, 0
        with self, torch.inference_mode():
            for inputs, targets in self.chunks():
                outputs = self._forward(*parts(inputs))
                loss += float(self.total(outputs, targets))
                if self._correct is not None:
                    num_correct += int(self._correct(outputs, targets).sum())
        error = None if self._correct is None else 1.0 - num_correct / self.num_examples
        return Values(loss / self.num_examples, error)

    # Batch norm.

    def set_buffers(self, values: dict[str, Tensor]) -> None:
        """Set buffers of the model, such as running statistics, until it is restored."""
        self._temporary.set_buffers(values)

    def recalibrate(self, inputs: Inputs) -> int:
        """Recompute the model's batch-norm statistics at the current point, exactly, over these inputs.

        Returns:
            The number of layers that were recalibrated.
        """
        count = len(parts(inputs)[0])
        # Only full batches are used, since a last batch of one example has no variance.
        whole = min(count, RECALIBRATION_BATCH)
        batches = [take(inputs, start, start + whole) for start in range(0, count - count % whole, whole)]
        return recalibrate(self.model, batches, forward=lambda _, batch: self.outputs(batch), world=World())

    # The parts of an evaluation, for callers that iterate over the chunks themselves.

    def chunks(self) -> Iterator[tuple[Inputs, Tensor]]:
        """Yield inputs and targets chunk by chunk; the chunks are always the same."""
        for start in range(0, self.num_examples, self.chunk):
            stop = min(start + self.chunk, self.num_examples)
            yield take(self.inputs, start, stop), self.targets[start:stop]

    def outputs(self, inputs: Inputs) -> Tensor:
        """Run the model on a chunk."""
        outputs: Tensor = self.model(*parts(inputs))
        return outputs

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of a chunk's losses, a scalar, in float64."""
        losses = self._losses(outputs, targets)
        wide = losses.double()
        if losses.dim() == 0:
            return wide if getattr(self._losses, "reduction", "mean") == "sum" else wide * len(targets)
        if losses.shape != targets.shape[:1]:
            expected, got = f"one value per example, shape [{len(targets)}], or their mean", list(losses.shape)
            raise ExamineError("the loss", expected=expected, got=got, do='use reduction="none" or "mean"')
        return wide.sum()


@contextmanager
def _fitting() -> Iterator[None]:
    """Convert the errors of a model that does not fit its loss or its examples to an error of one line."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ExamineError(
            f"the model and its loss do not run on these examples ({first_line}); check shapes, types and the loss"
        ) from error


def checksum(tensors: Iterable[Tensor]) -> str:
    """Return a checksum of 16 characters over all bits of the tensors."""
    found = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        found.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _count(inputs: Inputs, targets: Tensor) -> int:
    first = parts(inputs)[0]
    if len(targets) == 0 or len(first) != len(targets):
        expected, do = "inputs and targets of one length above 0", "pass a data set that is not empty"
        raise ExamineError("examples", expected=expected, got=f"{len(first)} and {len(targets)}", do=do)
    return len(targets)
