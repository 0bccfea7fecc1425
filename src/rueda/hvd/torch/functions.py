"""Broadcast one rank's state to all ranks: model parameters, optimizer state, or any object.

An optimizer's state is sent in two parts: first its *outline*, a pickle in which each tensor is replaced by its shape,
dtype and kind of device; then each tensor in its own broadcast, which avoids pickling it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from rueda.hvd.basics import rank
from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.core.entries import from_bytes
from rueda.hvd.pickled import dumps
from rueda.hvd.torch.mpi_ops import allgather, broadcast_, broadcast_async_, synchronize


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrite parameters in place with those of one rank.

    Args:
        params: ``model.state_dict()``, ``model.named_parameters()`` or ``model.parameters()``.
        root_rank: the rank whose values are broadcast.
        process_set: the ranks that take part.
    """
    entries = _with_names(params)
    _broadcast_tensors([(name, value) for name, value in entries if isinstance(value, Tensor)], root_rank, process_set)
    others = [(name, value) for name, value in entries if not isinstance(value, Tensor)]
    if others:  # the extra state of a module, which can be anything
        values = broadcast_object([value for _, value in others], root_rank, "parameters.other", process_set)
        if isinstance(params, dict):
            params.update({name: value for (name, _), value in zip(others, values, strict=True)})


def _with_names(params: Mapping[str, Any] | Iterable[Any]) -> list[tuple[str | None, Any]]:
    if isinstance(params, Mapping):
        return sorted(params.items())
    if isinstance(params, Tensor) or not isinstance(params, Iterable):
        raise ValueError(
            f"params: expected a state dict, named_parameters() or parameters(), got {type(params).__name__}; "
            "give model.state_dict()"
        )
    return [entry if isinstance(entry, tuple) else (None, entry) for entry in params]


def _broadcast_tensors(tensors: Iterable[tuple[str | None, Tensor]], root_rank: int, process_set: ProcessSet) -> None:
    """Overwrite tensors with the root's; all broadcasts are started before the first is waited for."""
    with torch.no_grad():
        handles = [
            broadcast_async_(tensor.detach(), root_rank, name=name, process_set=process_set) for name, tensor in tensors
        ]
        for handle in handles:
            synchronize(handle)


def broadcast_optimizer_state(
    optimizer: Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrite every rank's optimizer state and options (learning rate, weight decay ...) with those of one rank.

    This works for every torch optimizer, for those of :mod:`rueda.optim` and for a ``DistributedOptimizer``, also
    before the first step: state that the root does not have yet is empty on all ranks. It takes no optimizer step, so
    parameters stay unchanged. An optimizer without state gets gradients of zeros, as in Horovod, which scripts rely on
    that read ``parameter.grad`` before the first backward pass. Numbers keep their type, tensors their dtype.

    Args:
        optimizer: the optimizer, constructed with the same arguments on every rank.
        root_rank: the rank whose state is broadcast.
        model: ignored, accepted for compatibility with Horovod.
        process_set: the ranks that take part.
    """
    if not optimizer.state_dict()["state"]:
        _zero_gradients(optimizer)
    own = optimizer.state_dict() if rank() == root_rank else None
    state: dict[str, Any] = _broadcast_state(own, root_rank, "optimizer", process_set)
    if rank() != root_rank:
        load_optimizer_state(optimizer, state)


def load_optimizer_state(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load a state into an optimizer, whose tensors it then owns; they keep their dtypes, unlike with torch alone."""
    optimizer.load_state_dict(state)
    _restore_dtypes(optimizer, state)


def _zero_gradients(optimizer: Optimizer) -> None:
    """Set the gradient of every trainable parameter to zeros: sparse ones for SparseAdam, which accepts no others."""
    for parameter in chain.from_iterable(group["params"] for group in optimizer.param_groups):
        if parameter.requires_grad:
            zeros = torch.zeros_like(parameter, memory_format=torch.preserve_format, requires_grad=False)
            parameter.grad = zeros.to_sparse(1) if isinstance(optimizer, torch.optim.SparseAdam) else zeros


def _restore_dtypes(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Undo the conversion to the parameters' dtype that torch does while loading, so that all ranks are equal."""
    numbers = chain.from_iterable(group["params"] for group in state["param_groups"])
    owners = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    for number, owner in zip(numbers, owners, strict=True):
        for name, sent in state["state"].get(number, {}).items():
            loaded = optimizer.state[owner].get(name)
            if isinstance(sent, Tensor) and isinstance(loaded, Tensor) and loaded.dtype != sent.dtype:
                optimizer.state[owner][name] = sent.to(loaded.device)


@dataclass(frozen=True)
class _Outline:
    """Stands for a tensor in a pickle."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str  # the kind, such as "cuda": every rank uses its own device of that kind


def _broadcast_state(state: Any, root_rank: int, name: str, process_set: ProcessSet) -> Any:
    """Broadcast the root's state, which may nest dicts, lists and tuples, and return it."""
    tensors: list[Tensor] = []

    def outline(value: Tensor) -> object:
        if value.layout is not torch.strided:
            return value  # a sparse tensor is pickled
        tensors.append(value.detach().contiguous())
        return _Outline(tuple(value.shape), value.dtype, value.device.type)

    def fill(value: _Outline) -> object:
        tensors.append(torch.empty(value.shape, dtype=value.dtype, device=value.device))
        return tensors[-1]

    sent = broadcast_object(_mapped(state, Tensor, outline), root_rank, f"{name}.outline", process_set)
    result = state if rank() == root_rank else _mapped(sent, _Outline, fill)
    names = (f"{name}.{number}" for number in range(len(tensors)))
    _broadcast_tensors(zip(names, tensors, strict=True), root_rank, process_set)
    return result


def _mapped(value: Any, kind: type, change: Callable[[Any], object]) -> Any:
    """Apply ``change`` to every value of type ``kind`` within dicts, lists and tuples.

    >>> _mapped({"betas": (0.9, 0.99), "lists": [[1], 2]}, float, lambda x: x / 2)
    {'betas': (0.45, 0.495), 'lists': [[1], 2]}
    """
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(item, kind, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_mapped(item, kind, change) for item in value)
    return value


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return one rank's object on every rank; the root gets its own object back, not a copy.

    Args:
        obj: on the root, any object that can be pickled; ignored on the other ranks.
        root_rank: the rank whose object is broadcast.
        name: the name of the collective.
        process_set: the ranks that take part.
    """
    # Horovod names it after the object's type, but that may differ between the ranks: None on one, a dict on another.
    name = name if name is not None else "broadcast_object"
    data = dumps(obj) if rank() == root_rank else b""
    size = torch.tensor([len(data)])
    broadcast_(size, root_rank, name=f"{name}.size", process_set=process_set)
    content = from_bytes(data, torch.uint8) if data else torch.empty(int(size), dtype=torch.uint8)
    broadcast_(content, root_rank, name=f"{name}.content", process_set=process_set)
    return obj if rank() == root_rank else pickle.loads(content.numpy().tobytes())


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Return the objects of all ranks, in rank order, on every rank.

    Args:
        obj: any object that can be pickled.
        name: the name of the collective.
        process_set: the ranks that take part.
    """
    name = name if name is not None else "allgather_object"
    gathered = allgather(from_bytes(dumps(obj), torch.uint8), name=name, process_set=process_set)
    stream = io.BytesIO(gathered.numpy().tobytes())
    # A pickle marks its own end, so the sizes need not be sent. There may be more than ranks, or fewer: a worker that
    # joins an elastic job gets what an earlier world has gathered.
    objects = []
    while stream.tell() < gathered.numel():
        objects.append(pickle.load(stream))
    return objects
