"""The objective: the mean loss and the error of a model on examples that lie in memory, wherever its parameters stand.

Everything in :mod:`rueda.examine` is a question about one function of the parameters w,

    f(w) = 1/N sum_n loss(model(x_n; w), y_n)

and is asked through this class. The examples are read once. They pass through the model in chunks that stay in the
processor's cache, in evaluation mode; the chunks' sums are added in float64, always in the same order, so a point has
the same value whoever computes it. The model comes back as it was (:mod:`rueda.examine.objective.borrow`).
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
from rueda.examine.objective.borrow import Borrowed
from rueda.examine.objective.chunks import arranged, best_chunk, runs_in, wanted_order
from rueda.examine.objective.examples import Inputs, read_loader, take
from rueda.examine.objective.fewer_passes import fewer_passes
from rueda.nn import recalibrate
from rueda.world import World

PerExample = Callable[[Tensor, Tensor], Tensor]
RECALIBRATION_BATCH = 256


@dataclass(frozen=True)
class Values:
    """What the model does at a point."""

    loss: float
    """mean over the examples; nan or inf where the network overflows"""
    error: float | None
    """share of wrong answers; None without a metric"""


class Objective:
    """Mean loss of a model on examples in memory, as a function of its parameters.

    Use it as a context manager around many evaluations: the model is then borrowed once. Every method also works
    alone. Points and directions are lists of tensors, one a parameter, in the order of ``names``.

    Args:
        model: any module; left bit for bit as it was, also after an exception.
        losses: (outputs, targets) -> a loss an example [B], or their mean (a scalar; ``reduction="sum"`` is known).
        inputs: [N, ...], or a tuple of such tensors for a model that takes several.
        targets: [N, ...].
        correct: (outputs, targets) -> True where an example is right, [B]; None if there is no such thing.
        chunk: examples at a time; by default as many as stay in the cache.
        device: where to compute; by default where the model is.

    >>> model = nn.Linear(1, 1, bias=False).double()
    >>> _ = model.weight.data.fill_(3.0)
    >>> x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    >>> half_square = lambda outputs, targets: 0.5 * (outputs - targets).square().sum(1)
    >>> with Objective(model, half_square, x, torch.zeros_like(x)) as objective:  # f(w) = 1.25 w^2
    ...     objective.move([[torch.ones(1, 1)]], [-1.0])
    ...     objective.value(), objective.gradient(), objective.hessian_vector([torch.ones(1, 1)])
    (5.0, [tensor([[5.]], dtype=torch.float64)], [tensor([[2.5000]], dtype=torch.float64)])
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
        self._borrowed = Borrowed(model, device=device)
        self.device = self._borrowed.device
        self.dtype = self._borrowed.origin[0].dtype
        self.model = self._borrowed.model
        inputs = _to(inputs, self.device)
        self.targets = targets.to(self.device)
        self._borrowed.order = wanted_order(self.model)
        with self._borrowed:
            runs = runs_in(self._borrowed.order, self.model, inputs)
        if not runs:
            self._borrowed.order = torch.contiguous_format
        self.inputs = arranged(inputs, self._borrowed.order)
        with self._borrowed, _fitting():
            self.chunk = chunk or best_chunk(self.model, self.inputs, self.num_examples)
        with self, _fitting(), torch.inference_mode():  # a loss that does not fit is met now, on two examples
            self.total(self.outputs(take(self.inputs, 0, 2)), self.targets[:2])
            self._forward = fewer_passes(self.model, take(self.inputs, 0, 2))

    @classmethod
    def from_loader(
        cls, model: nn.Module, losses: PerExample, loader: Iterable[Any], *, limit: int | None = None, **options: Any
    ) -> Objective:
        """Read a loader of ``(inputs, targets)`` batches once into memory; an empty one is refused.

        Args:
            model: as above.
            losses: as above.
            loader: a DataLoader, or any iterable of batches; what a batch holds beyond the two is left out.
            limit: at most so many examples, the first ones.
            options: ``correct``, ``chunk``, ``device``.
        """
        inputs, targets = read_loader(loader, limit)
        return cls(model, losses, inputs, targets, **options)

    def with_examples(self, inputs: Inputs, targets: Tensor) -> Objective:
        """Give the same model on other examples (the test data): it moves together with this one."""
        other = copy.copy(self)  # the borrowed model is shared
        other.num_examples = _count(inputs, targets)
        other.inputs, other.targets = arranged(_to(inputs, self.device), self._borrowed.order), targets.to(self.device)
        other.chunk = min(self.chunk, other.num_examples)
        return other

    def fingerprint(self) -> str:
        """Give a checksum of all that the values depend on: parameters, buffers, examples, chunks."""
        sums = [
            checksum([*self.origin, *self.model.buffers()]),
            checksum([*(self.inputs if isinstance(self.inputs, tuple) else [self.inputs]), self.targets]),
        ]
        return f"{sums[0]}-{sums[1]}-{self.chunk}"

    # Where the parameters stand.

    @property
    def names(self) -> list[str]:
        """The parameters' names."""
        return self._borrowed.names

    @property
    def origin(self) -> list[Tensor]:
        """The parameters as the model's owner has them: the point that surfaces are centred on. Not to be written."""
        return self._borrowed.origin

    @property
    def parameters(self) -> list[tuple[str, Tensor]]:
        """Names and tensors at the current point (outside a ``with`` block: the origin)."""
        return list(zip(self.names, self._borrowed.work or self.origin, strict=True))

    @property
    def leaves(self) -> list[nn.Parameter]:
        """The model's own parameters, by which autograd differentiates."""
        return self._borrowed.owned

    @property
    def num_parameters(self) -> int:
        """How many numbers can be moved."""
        return sum(one.numel() for one in self.origin)

    def __enter__(self) -> Objective:
        self._borrowed.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._borrowed.__exit__()

    def set(self, point: Sequence[Tensor] | Tensor) -> None:
        """Go to a point: a list of tensors, or one flat vector [num_parameters]."""
        self._borrowed.set(self.split(point) if isinstance(point, Tensor) else point)

    def move(self, directions: Sequence[Sequence[Tensor]], steps: Sequence[float]) -> None:
        """Go to origin + sum of steps x directions."""
        self._borrowed.move(directions, steps)

    @contextmanager
    def at(self, point: Sequence[Tensor] | Tensor) -> Iterator[Objective]:
        """Be at a point for the length of a ``with`` block, then where one was."""
        with self:
            before = [one.clone() for one in self._borrowed.work]
            self.set(point)
            try:
                yield self
            finally:
                self._borrowed.set(before)

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """Join tensors to one vector [num_parameters], in float64."""
        return torch.cat([one.detach().reshape(-1).double() for one in tensors])

    def split(self, vector: Tensor) -> list[Tensor]:
        """Cut a vector [num_parameters] into tensors of the parameters' shapes."""
        if vector.shape != (self.num_parameters,):
            raise ExamineError(
                "a flat point",
                expected=f"shape [{self.num_parameters}]",
                got=list(vector.shape),
                do="flatten a point of the same model",
            )
        parts = torch.split(vector, [one.numel() for one in self.origin])
        return [part.view(one.shape) for part, one in zip(parts, self.origin, strict=True)]

    # Values there.

    def value(self) -> float:
        """Give the mean loss."""
        return self.values().loss

    def values(self) -> Values:
        """Give mean loss and error."""
        loss, num_correct = 0.0, 0
        with self, torch.inference_mode():
            for inputs, targets in self.chunks():
                outputs = self._forward(*inputs) if isinstance(inputs, tuple) else self._forward(inputs)
                loss += float(self.total(outputs, targets))
                if self._correct is not None:
                    num_correct += int(self._correct(outputs, targets).sum())
        error = None if self._correct is None else 1.0 - num_correct / self.num_examples
        return Values(loss / self.num_examples, error)

    def gradient(self) -> list[Tensor]:
        """Give the gradient of the mean loss, in float64."""
        with self:
            found = self._zeros()
            for inputs, targets in self.chunks():
                total = self.total(self.outputs(inputs), targets)
                self._add(found, torch.autograd.grad(total, self._borrowed.owned, allow_unused=True))
        return found

    def hessian_vector(self, vector: Sequence[Tensor]) -> list[Tensor]:
        """Give the Hessian of the mean loss times a vector, in float64: the gradient of <gradient, vector>."""
        with self:
            found = self._zeros()
            fixed = [part.to(one) for part, one in zip(vector, self._borrowed.work, strict=True)]
            for inputs, targets in self.chunks():
                total = self.total(self.outputs(inputs), targets)
                slopes = torch.autograd.grad(total, self._borrowed.owned, create_graph=True, allow_unused=True)
                pairs = [(slope, part) for slope, part in zip(slopes, fixed, strict=True) if slope is not None]
                along = torch.stack([(slope * part).sum() for slope, part in pairs]).sum()
                if along.requires_grad:
                    self._add(found, torch.autograd.grad(along, self._borrowed.owned, allow_unused=True))
        return found

    # Batch norm.

    def set_buffers(self, values: dict[str, Tensor]) -> None:
        """Give buffers of the borrowed model, such as running statistics, other values until it is given back."""
        self._borrowed.set_buffers(values)

    def recalibrate(self, inputs: Inputs) -> int:
        """Recompute the borrowed model's batch-norm statistics at this point, exactly, over these inputs.

        Returns:
            How many layers were recalibrated.
        """
        count = len(inputs[0]) if isinstance(inputs, tuple) else len(inputs)
        # A last batch of one could not be normalised by itself.
        whole = min(count, RECALIBRATION_BATCH)
        batches = [take(inputs, start, start + whole) for start in range(0, count - count % whole, whole)]
        return recalibrate(self.model, batches, forward=lambda _, batch: self.outputs(batch), world=World())

    # The parts, for those who walk the chunks themselves.

    def chunks(self) -> Iterator[tuple[Inputs, Tensor]]:
        """Give inputs and targets chunk by chunk, always the same chunks."""
        for start in range(0, self.num_examples, self.chunk):
            stop = min(start + self.chunk, self.num_examples)
            yield take(self.inputs, start, stop), self.targets[start:stop]

    def outputs(self, inputs: Inputs) -> Tensor:
        """Run the model on a chunk."""
        outputs: Tensor = self.model(*inputs) if isinstance(inputs, tuple) else self.model(inputs)
        return outputs

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Sum the losses of a chunk, in float64 where the device has it: a scalar."""
        losses = self._losses(outputs, targets)
        wide = losses if losses.device.type == "mps" else losses.double()
        if losses.dim() == 0:
            return wide if getattr(self._losses, "reduction", "mean") == "sum" else wide * len(targets)
        if losses.shape != targets.shape[:1]:
            raise ExamineError(
                "the loss",
                expected=f"one value an example, shape [{len(targets)}], or their mean",
                got=list(losses.shape),
                do='use reduction="none" or "mean"',
            )
        return wide.sum()

    def _zeros(self) -> list[Tensor]:
        kind = torch.float32 if self.device.type == "mps" else torch.float64
        return [torch.zeros(one.shape, dtype=kind, device=self.device) for one in self.origin]

    def _add(self, found: list[Tensor], parts: Sequence[Tensor | None]) -> None:
        for sum_so_far, part in zip(found, parts, strict=True):
            if part is not None:
                sum_so_far.add_(part.to(sum_so_far) / self.num_examples)


@contextmanager
def _fitting() -> Iterator[None]:
    """Say in one line that a model, its loss and its examples do not go together."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ExamineError(
            f"the model and its loss do not run on these examples ({first_line}); check shapes, types and the loss"
        ) from error


def checksum(tensors: Iterable[Tensor]) -> str:
    """Give 16 letters that change with any bit of the tensors."""
    found = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        found.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _count(inputs: Inputs, targets: Tensor) -> int:
    first = inputs[0] if isinstance(inputs, tuple) else inputs
    if len(targets) == 0 or len(first) != len(targets):
        raise ExamineError(
            "examples",
            expected="inputs and targets of one length above 0",
            got=f"{len(first)} and {len(targets)}",
            do="pass a data set that is not empty",
        )
    return len(targets)


def _to(inputs: Inputs, device: torch.device) -> Inputs:
    return tuple(part.to(device) for part in inputs) if isinstance(inputs, tuple) else inputs.to(device)
