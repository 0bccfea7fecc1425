"""Sort the tensors of a step: single tensors for the host path, lanes of similar tensors for the multi-tensor path."""

from __future__ import annotations

from collections.abc import Callable
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


_APART = ("params", "param_names", "weight_decay", "adapt")  # may differ between the tensors of a lane
_MOST = 1 << 25  # elements of a lane, which bounds the scratch memory of a step: 128 MiB for each matrix


@dataclass
class Lane:
    """Tensors that are stepped together: they share device, dtype, sharding and the options of their groups.

    Weight decay and adaptation may differ, so that the two groups of :func:`rueda.optim.parameter_groups` are one lane.
    """

    group: dict[str, Any]
    """the options; of several groups, those of the first"""
    shards: tuple[ProcessGroup, ...] = ()
    owners: list[Tensor] = field(default_factory=list)
    """the parameters as the user holds them"""
    params: list[Tensor] = field(default_factory=list)
    """their local parts"""
    grads: list[Tensor] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    adapted: list[bool] = field(default_factory=list)
    """which tensors are adapted layer by layer"""
    decays: list[float] = field(default_factory=list)
    """the weight decay of each tensor"""
    scale: Tensor | None = None
    """a factor of all gradients, which are not changed themselves"""

    def buffers(self, name: str) -> list[Tensor]:
        """Return the local parts of one state tensor of each parameter."""
        return [local(state[name]) for state in self.states]


class Lanes:
    """The lanes of a step, to which the groups add their tensors."""

    def __init__(self) -> None:
        self.all: list[Lane] = []
        self.num_tensors = 0
        self._open: dict[Any, tuple[Lane, int]] = {}  # the lane that takes further tensors, and its elements

    def add(self, group: dict[str, Any], p: Tensor, grad: Tensor, state: State, adapted: bool, decay: float) -> None:
        """Add a parameter to the lane of its kind; a full lane is followed by another one."""
        options = [(k, id(v) if isinstance(v, Tensor) else repr(v)) for k, v in group.items() if k not in _APART]
        shards = shards_of(p)
        key = (p.device, p.dtype, shards, *options)
        part = local(p)
        self.num_tensors += 1
        lane, size = self._open.get(key, (None, 0))
        if lane is None or size + part.numel() > _MOST:
            lane, size = Lane(group, shards), 0
            self.all.append(lane)
        self._open[key] = lane, size + part.numel()
        lane.owners.append(p)
        lane.params.append(part)
        lane.grads.append(_local_gradient(p, grad))
        lane.states.append(state)
        lane.adapted.append(adapted)
        lane.decays.append(decay)


def sort(
    group: dict[str, Any],
    states: dict[Tensor, State],
    begin: Callable[[dict[str, Any], Tensor], State],
    buffer: str,
    lanes: Lanes,
) -> list[Item]:
    """Sort the parameters of a group that have gradients: return those of the host path, add the others to ``lanes``.

    Args:
        group: the parameter group.
        states: the state of each parameter.
        begin: returns the state of a parameter before its first step.
        buffer: the name of a state tensor whose memory layout is that of all state tensors.
        lanes: receives the tensors that are stepped together.
    """
    items: list[Item] = []
    adapt = group["adapt"]
    strided = torch.strided
    may_use_host = group["fused"] is not False and not group["capturable"] and not torch.compiler.is_compiling()
    for p in group["params"]:  # for small tensors this loop is most of the overhead: cheap checks come first
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
            if is_dense(p):
                items.append(_flattened(p, grad, state, adapted))
                continue
        lanes.add(group, p, grad, state, adapted, decay_of(group, adapted))
    return items


def decay_of(group: dict[str, Any], adapted: bool) -> float:
    """Return the weight decay of a tensor of the group, which depends on whether it is adapted."""
    return float(group.get("weight_decay", 0.0)) if adapted or group["adapt"] is not None else 0.0


def local(tensor: Tensor) -> Tensor:
    """Return the local shard of a ``DTensor``; any other tensor is returned as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def state_like(p: Tensor) -> Tensor:
    """Return zeros in the layout of ``p``; in float32 for half precision, which would round small updates away."""
    return torch.zeros_like(p, dtype=torch.float32 if p.dtype not in _FULL else p.dtype)


def _local_gradient(p: Tensor, grad: Tensor) -> Tensor:
    placements = getattr(p, "placements", None)
    if placements is not None and getattr(grad, "placements", placements) != placements:
        grad = grad.redistribute(placements=placements)  # type: ignore[attr-defined]
    return local(grad)


def shards_of(p: Tensor) -> tuple[ProcessGroup, ...]:
    """Return the process groups over which a sharded parameter's squares must be summed."""
    if not hasattr(p, "placements"):
        return ()
    mesh = p.device_mesh  # type: ignore[attr-defined]
    return tuple(mesh.get_group(dim) for dim, place in enumerate(p.placements) if not place.is_replicate())


def is_dense(p: Tensor) -> bool:
    """Tell whether the elements fill a contiguous range of memory in some order, such as channels last."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(p.stride(), p.shape, strict=True) if n > 1):
        if stride != expected:
            return False
        expected *= size
    return p.numel() > 0


def _flattened(p: Tensor, grad: Tensor, state: State, adapted: bool) -> Item:
    """Return one-dimensional views of a parameter, its gradient and its state, in the parameter's memory order."""

    def line(tensor: Tensor) -> Tensor:
        return tensor.as_strided((p.numel(),), (1,))

    def alike(tensor: Tensor) -> Tensor:
        return tensor if tensor.stride() == p.stride() else torch.empty_like(p).copy_(tensor)

    for name, value in state.items():
        if isinstance(value, Tensor) and value.dim():
            state[name] = alike(value)
    return line(p), line(alike(grad)), _Lines(state, line), adapted


class _Lines(State):
    """A state whose tensors are one-dimensional views; values that are set are also written to the original state."""

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
