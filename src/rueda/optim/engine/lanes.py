"""Tensors sorted for a step: single ones for the host path, lanes of like ones for the multi-tensor path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

from rueda.errors import RecipeError, explain

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

State = dict[str, Any]
Item = tuple[Tensor, Tensor, State, bool]  # parameter, gradient, state, is it adapted layer by layer
_PLAIN = (Parameter, Tensor)
_FULL = (torch.float32, torch.float64)


@dataclass
class Lane:
    """Tensors of one group that are stepped together: one device, one dtype, adapted or not, sharded alike."""

    adapted: bool
    shards: tuple[ProcessGroup, ...] = ()
    owners: list[Tensor] = field(default_factory=list)  # the parameters as the user holds them
    params: list[Tensor] = field(default_factory=list)  # their local parts
    grads: list[Tensor] = field(default_factory=list)
    states: list[State] = field(default_factory=list)

    def pick(self, flags: Sequence[bool]) -> Lane:
        """Return a lane of the flagged tensors only."""
        rows = [i for i, flag in enumerate(flags) if flag]
        return Lane(
            self.adapted,
            self.shards,
            [self.owners[i] for i in rows],
            [self.params[i] for i in rows],
            [self.grads[i] for i in rows],
            [self.states[i] for i in rows],
        )

    def buffers(self, name: str) -> list[Tensor]:
        """Return the local parts of one state tensor of each parameter."""
        return [local(state[name]) for state in self.states]


def sort(
    group: dict[str, Any],
    states: dict[Tensor, State],
    begin: Callable[[dict[str, Any], Tensor], State],
    buffer: str,
) -> tuple[list[Item], list[Lane]]:
    """Sort the group's parameters that have gradients.

    ``begin`` makes the state of a new one; ``buffer`` names a tensor of that state that is laid out as the rest of it.
    """
    items: list[Item] = []
    lanes: dict[Any, Lane] = {}
    adapt = group["adapt"]
    strided = torch.strided
    may_use_host = group["fused"] is not False and not group["capturable"] and not torch.compiler.is_compiling()
    for p in group["params"]:  # this loop is most of what 400 small tensors cost beside arithmetic: cheap checks first
        grad = p.grad
        if grad is None:
            continue
        if grad.layout is not strided:
            raise RecipeError(_sparse(p))
        state = states[p]
        if not state:
            state.update(begin(group, p))
        adapted = p.dim() > 1 if adapt is None else adapt
        dtype = p.dtype
        if may_use_host and dtype in _FULL and grad.dtype is dtype and type(p) in _PLAIN and p.is_cpu:
            like = state.get(buffer)
            if p.is_contiguous() and grad.is_contiguous() and (like is None or like.is_contiguous()):
                items.append((p, grad, state, adapted))
                continue
            if _is_dense(p):
                items.append(_flattened(p, grad, state, adapted))
                continue
        shards = _shards(p)
        key = (p.device, p.dtype, adapted, shards)
        if key not in lanes:
            lanes[key] = Lane(adapted, shards)
        lane = lanes[key]
        lane.owners.append(p)
        lane.params.append(local(p))
        lane.grads.append(_local_gradient(p, grad))
        lane.states.append(state)
    return items, list(lanes.values())


def local(tensor: Tensor) -> Tensor:
    """Return this worker's part of a tensor: all of it, unless it is a ``DTensor``."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def state_like(p: Tensor) -> Tensor:
    """Return zeros laid out as ``p``; float32 where ``p`` is half precision, whose averages would stall otherwise."""
    return torch.zeros_like(p, dtype=torch.float32 if p.dtype not in _FULL else p.dtype)


def _local_gradient(p: Tensor, grad: Tensor) -> Tensor:
    placements = getattr(p, "placements", None)
    if placements is not None and getattr(grad, "placements", placements) != placements:
        grad = grad.redistribute(placements=placements)  # type: ignore[attr-defined]
    part = local(grad)
    return part.float() if part.dtype not in _FULL else part


def _shards(p: Tensor) -> tuple[ProcessGroup, ...]:
    """Return the process groups over which a sharded parameter's squares must be summed."""
    if not hasattr(p, "placements"):
        return ()
    mesh = p.device_mesh  # type: ignore[attr-defined]
    return tuple(mesh.get_group(dim) for dim, place in enumerate(p.placements) if not place.is_replicate())


def _is_dense(p: Tensor) -> bool:
    """Say whether the elements fill one stretch of memory in some order, such as channels last."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(p.stride(), p.shape, strict=True) if n > 1):
        if stride != expected:
            return False
        expected *= size
    return p.numel() > 0


def _flattened(p: Tensor, grad: Tensor, state: State, adapted: bool) -> Item:
    """View a parameter, its gradient and its state as lines of memory in the parameter's own order."""

    def line(tensor: Tensor) -> Tensor:
        return tensor.as_strided((p.numel(),), (1,))

    def alike(tensor: Tensor) -> Tensor:
        return tensor if tensor.stride() == p.stride() else torch.empty_like(p).copy_(tensor)

    for name, value in state.items():
        if isinstance(value, Tensor) and value.dim():
            state[name] = alike(value)
    return line(p), line(alike(grad)), _Lines(state, line), adapted


class _Lines(State):
    """A state with its tensors seen as lines of memory; numbers are written through."""

    def __init__(self, state: State, line: Callable[[Tensor], Tensor]) -> None:
        super().__init__({k: line(v) if isinstance(v, Tensor) and v.dim() else v for k, v in state.items()})
        self.source = state

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self.source[name] = value


def _sparse(p: Tensor) -> str:
    return explain(
        "a gradient",
        expected="a dense tensor, since a layer's norm needs every element",
        got=f"a sparse one of shape {tuple(p.shape)}",
        do="make the embedding with sparse=False or give it to torch.optim.SparseAdam",
    )
