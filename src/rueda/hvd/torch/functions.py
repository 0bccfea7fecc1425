"""Give every worker the state of one: parameters, optimizer, any object.

A state is sent in two parts: its *outline*, a pickle in which each tensor is replaced by its shape, dtype and kind of
device; then the tensors themselves, each in a broadcast of its own, so that they travel as tensors and not as bytes.
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
from rueda.hvd.pickled import dumps
from rueda.hvd.torch.mpi_ops import allgather, broadcast_, broadcast_async_, synchronize

Named = tuple["str | None", Any]


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrite parameters, in place, by those of one worker.

    Args:
        params: ``model.state_dict()``, ``model.named_parameters()`` or ``model.parameters()``.
        root_rank: whose values all get.
        process_set: among whom.
    """
    entries = _named(params)
    _broadcast_tensors([(name, value) for name, value in entries if isinstance(value, Tensor)], root_rank, process_set)
    others = [(name, value) for name, value in entries if not isinstance(value, Tensor)]
    if others:  # the extra state of a module, which can be anything
        values = broadcast_object([value for _, value in others], root_rank, "parameters.other", process_set)
        if isinstance(params, dict):
            params.update({name: value for (name, _), value in zip(others, values, strict=True)})


def _named(params: Mapping[str, Any] | Iterable[Any]) -> list[Named]:
    if isinstance(params, Mapping):
        return sorted(params.items())
    if isinstance(params, Tensor) or not isinstance(params, Iterable):
        raise ValueError(
            f"params: expected a state dict, named_parameters() or parameters(), got {type(params).__name__}; "
            "give model.state_dict()"
        )
    return [entry if isinstance(entry, tuple) else (None, entry) for entry in params]


def _broadcast_tensors(tensors: Iterable[tuple[str | None, Tensor]], root_rank: int, process_set: ProcessSet) -> None:
    """Overwrite tensors by the root's; all are submitted before the first is waited for."""
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
    """Give every worker's optimizer the state and the options (rates, decay ...) of one.

    Works for every torch optimizer, for those of :mod:`rueda.optim` and for a ``DistributedOptimizer``, before the
    first step as well: a state that the root does not have yet is empty on all. No step is taken for it, so parameters
    and gradients stay as they are. Numbers keep their type, tensors their dtype.

    Args:
        optimizer: the optimizer, made alike on every worker.
        root_rank: whose state all get.
        model: not needed; accepted, as in Horovod.
        process_set: among whom.
    """
    own = optimizer.state_dict() if rank() == root_rank else None
    state: dict[str, Any] = _broadcast_state(own, root_rank, "optimizer", process_set)
    if rank() != root_rank:
        optimizer.load_state_dict(state)
        _restore_dtypes(optimizer, state)


def _restore_dtypes(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Put back what torch rounded to the parameter's dtype while loading, so that all ranks hold the same values."""
    numbers = chain.from_iterable(group["params"] for group in state["param_groups"])
    owners = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    for number, owner in zip(numbers, owners, strict=True):
        for name, sent in state["state"].get(number, {}).items():
            loaded = optimizer.state[owner].get(name)
            if isinstance(sent, Tensor) and isinstance(loaded, Tensor) and loaded.dtype != sent.dtype:
                optimizer.state[owner][name] = sent.to(loaded.device)


@dataclass(frozen=True)
class _Outline:
    """What stands in a pickle for a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str

    def empty(self) -> Tensor:
        """Make the tensor on this worker's own device of that kind."""
        return torch.empty(self.shape, dtype=self.dtype, device=self.device)


def _broadcast_state(state: Any, root_rank: int, name: str, process_set: ProcessSet) -> Any:
    """Give all workers the root's state, nested in any way; its tensors travel as tensors."""
    tensors: list[Tensor] = []

    def outline(value: Tensor) -> object:
        if value.layout is not torch.strided:
            return value  # a sparse tensor travels in the pickle
        tensors.append(value.detach().contiguous())
        return _Outline(tuple(value.shape), value.dtype, value.device.type)

    def fill(value: _Outline) -> object:
        tensors.append(value.empty())
        return tensors[-1]

    sent = broadcast_object(_mapped(state, Tensor, outline), root_rank, f"{name}.outline", process_set)
    whole = state if rank() == root_rank else _mapped(sent, _Outline, fill)
    names = (f"{name}.{number}" for number in range(len(tensors)))
    _broadcast_tensors(zip(names, tensors, strict=True), root_rank, process_set)
    return whole


def _mapped(value: Any, kind: type, change: Callable[[Any], object]) -> Any:
    """Change everything of a kind within dicts, lists and tuples.

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
    """Give every worker an object of one, which gets its own back.

    Args:
        obj: on the root: anything that can be pickled. Elsewhere it is ignored.
        root_rank: whose object it is.
        name: of the collective.
        process_set: among whom.
    """
    # Not the type's name, as in Horovod: the ranks may bring None and a dict, and must still meet.
    name = name if name is not None else "broadcast_object"
    data = dumps(obj) if rank() == root_rank else b""
    size = torch.tensor([len(data)])
    broadcast_(size, root_rank, name=f"{name}.size", process_set=process_set)
    content = _bytes(data) if data else torch.empty(int(size), dtype=torch.uint8)
    broadcast_(content, root_rank, name=f"{name}.content", process_set=process_set)
    return obj if rank() == root_rank else pickle.loads(content.numpy().tobytes())


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Give every worker the objects of all, in rank order.

    Args:
        obj: anything that can be pickled.
        name: of the collective.
        process_set: among whom.
    """
    name = name if name is not None else "allgather_object"
    gathered = allgather(_bytes(dumps(obj)), name=name, process_set=process_set)
    stream = io.BytesIO(gathered.numpy().tobytes())
    # A pickle knows where it ends: no sizes need to travel.
    return [pickle.load(stream) for _ in range(process_set.size())]


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
