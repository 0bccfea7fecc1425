"""Compressed gradients of virtual workers: the arithmetic of :mod:`rueda.train.gradient_compression` in one process.

The gradients of the workers arrive one after the other, each that of its own mean loss. Then the average takes their
place, as the communication hook of real workers computes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import _orthogonalize

from rueda.errors import RecipeError
from rueda.records import Recipe
from rueda.train.gradient_compression import HALVES
from rueda.train.power_sgd import EPSILON, MOST_ERROR_BYTES, PowerSGDShapes
from rueda.world import World
from rueda.world.host_memory import available_bytes


class RehearsedCompression(Protocol):
    """Averages the gradients of virtual workers."""

    def begin(self, step: int) -> None:
        """Begin an update, after so many updates before it."""

    def take(self) -> None:
        """Take the next worker's gradients, and clear ``.grad``."""

    def finish(self) -> None:
        """Set ``.grad`` to the average of all workers."""

    def state_dict(self, world: World) -> dict[str, Any] | None:
        """Return what lasts from one update to the next."""

    def load_state_dict(self, state: Mapping[str, Any] | None, world: World) -> None:
        """Continue from a state."""


def rehearsed_compression(
    recipe: Recipe, world: World, parameters: Mapping[str, nn.Parameter]
) -> RehearsedCompression | None:
    """Return what averages the gradients of virtual workers; None if they are not compressed."""
    if recipe.gradient_compression == "none" or recipe.workers == 1:
        return None
    if recipe.gradient_compression == "powersgd":
        return RehearsedPowerSGD(recipe, world, parameters)
    return RehearsedSum(HALVES[recipe.gradient_compression], recipe.workers, parameters)


class RehearsedSum:
    """Averages gradients: each rounded to a data type and divided by N, then added up in rank order.

    Args:
        dtype: the data type in which they are added up; None for their own.
        size: the number of workers.
        parameters: the trained parameters by name.

    >>> weight = nn.Parameter(torch.zeros(1))
    >>> halves = RehearsedSum(torch.bfloat16, 2, {"weight": weight})
    >>> for gradient in (1.0, 3.001):  # from 2 to 4 bfloat16 has steps of 1/64
    ...     weight.grad = torch.tensor([gradient])
    ...     halves.take()
    >>> halves.finish()
    >>> weight.grad
    tensor([2.])
    """

    def __init__(self, dtype: torch.dtype | None, size: int, parameters: Mapping[str, nn.Parameter]) -> None:
        self._dtype, self._size, self._parameters = dtype, size, list(parameters.values())
        self._sums: dict[nn.Parameter, Tensor] = {}

    def begin(self, step: int) -> None:
        """Begin an update."""
        self._sums.clear()

    def take(self) -> None:
        """Take the next worker's gradients, and clear ``.grad``."""
        for one in self._parameters:
            if one.grad is not None:
                part = one.grad.to(self._dtype or one.grad.dtype).div_(self._size)
                self._sums[one] = self._sums[one].add_(part) if one in self._sums else part
                one.grad = None

    def finish(self) -> None:
        """Set ``.grad`` to the average of all workers."""
        for one, total in self._sums.items():
            one.grad = total.to(one.dtype)

    def state_dict(self, world: World) -> None:
        """Return nothing: each update is compressed by itself."""

    def load_state_dict(self, state: Mapping[str, Any] | None, world: World) -> None:
        """Do nothing."""


class RehearsedPowerSGD:
    """Averages gradients by PowerSGD; the memory is that of one more gradient for each virtual worker.

    Args:
        recipe: the rank, and when it begins.
        world: says on which device the gradients are.
        parameters: the trained parameters by name.

    Raises:
        RecipeError: the errors of all workers do not fit into memory.
    """

    def __init__(self, recipe: Recipe, world: World, parameters: Mapping[str, nn.Parameter]) -> None:
        self._shapes, self._parameters = PowerSGDShapes(recipe, parameters), parameters
        self._start, self._size, self._step = recipe.powersgd_start, recipe.workers, 0
        needed = recipe.workers * sum(one.nbytes for one in parameters.values())
        free = available_bytes() if world.device.type == "cpu" else None
        if free is not None and needed > free:
            raise RecipeError(
                f"each of {recipe.workers} rehearsed workers keeps PowerSGD's error, {needed / 1e9:.1f} GB of all, and "
                f"{free / 1e9:.1f} GB are free; rehearse fewer, or set another gradient_compression"
            )
        self._whole = RehearsedSum(None, recipe.workers, parameters)  # before PowerSGD begins
        self._factors: dict[str, Tensor] = {}
        self._errors: list[dict[str, Tensor]] = []
        """of each worker; empty: zero"""
        self._inputs: list[dict[str, Tensor]] = []
        """the workers' gradients of this update, with their errors"""

    def begin(self, step: int) -> None:
        """Begin an update, after so many updates before it."""
        self._step = step
        self._whole.begin(step)
        self._inputs = []

    def take(self) -> None:
        """Take the next worker's gradients, and clear ``.grad``."""
        if self._step < self._start:
            self._whole.take()
            return
        error = self._errors[len(self._inputs)] if self._errors else {}
        own: dict[str, Tensor] = {}
        for name, one in self._parameters.items():
            if one.grad is not None:
                own[name] = one.grad.add_(error[name].to(one.grad)) if name in error else one.grad
                one.grad = None
        self._inputs.append(own)

    def finish(self) -> None:
        """Set ``.grad`` to the average of all workers, and keep what it leaves out of each."""
        if self._step < self._start:
            self._whole.finish()
            return
        for name in self._inputs[0]:
            inputs = [own[name] for own in self._inputs]
            mean = self._average(name, inputs)
            self._parameters[name].grad = mean
            for one in inputs:
                one.sub_(mean)
        self._errors, self._inputs = self._inputs, []

    def _average(self, name: str, inputs: list[Tensor]) -> Tensor:
        """Return the average of the workers' tensors: M' = P Q^T, or their mean if they are not compressed."""
        factors = self._shapes.factors[name]
        if factors is None:
            return _sum(inputs).div_(self._size)
        matrices = [one.view(1, factors.rows, factors.columns) for one in inputs]
        q = self._factors.get(name)
        q = self._shapes.first(name, inputs[0]) if q is None else q.to(inputs[0])
        q = q[None].clone()  # torch's kernels take batches of matrices
        _orthogonalize(q, EPSILON)  # type: ignore[no-untyped-call]
        p = _sum([torch.bmm(matrix, q) for matrix in matrices])
        _orthogonalize(p, EPSILON)  # type: ignore[no-untyped-call]
        q = _sum([torch.bmm(matrix.transpose(1, 2), p) for matrix in matrices]).div_(self._size)
        self._factors[name] = q[0]
        return torch.bmm(p, q.transpose(1, 2)).view_as(inputs[0])

    def state_dict(self, world: World) -> dict[str, Any]:
        """Return Q of each parameter and the errors of all virtual workers."""
        num_bytes = sum(one.nbytes for own in self._errors for one in own.values())
        return {"factors": self._factors, "errors": self._errors if num_bytes <= MOST_ERROR_BYTES else []}

    def load_state_dict(self, state: Mapping[str, Any] | None, world: World) -> None:
        """Continue from a state; without one, or with errors of another number of workers, these begin at zero."""
        self._factors = {} if state is None else {name: one.clone() for name, one in state["factors"].items()}
        errors = [] if state is None else state["errors"]
        self._errors = [
            {name: one.clone() for name, one in own.items()} for own in errors
        ] if len(errors) == self._size else []  # fmt: skip


def _sum(parts: list[Tensor]) -> Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total.add_(part)
    return total
