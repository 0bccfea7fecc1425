"""The state of a divided model as that of one worker: gathered for a checkpoint, and divided again.

Tensors keep the names of the whole model and optimizer states the order of its parameters, so that a checkpoint of any
form resumes on one worker and in any other form. A worker has

- of a pipeline, the tensors of its stages; the others are on the device ``meta``,
- of a sharded model or a tensor group, a part of a tensor: a ``DTensor``, whose parts are gathered or cut out. A state
  of the optimizer is divided as its parameter if it has its shape, and whole on each worker otherwise.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.optim import Optimizer

from rueda.optim.engine.lanes import local
from rueda.train.parallel.stages import is_kept
from rueda.train.parallel.tensor_split import RowOrder

WHOLE = "group_of_whole"
"""key of a parameter group that was cut out of one of the whole model's: its number there, and all of its names"""
_NOT_OPTIONS = ("params", "param_names", WHOLE)
IMPLEMENTATION = ("fused", "foreach")
"""options that say how an optimizer computes, not what; each form has its own"""


# One tensor.


def whole_tensor(name: str, tensor: Any, order: RowOrder, *, keep: bool = True) -> Any:
    """Gather a tensor of the parameter ``name`` if it is divided; all workers that have a part must call it.

    Those that shall ``keep`` it get it in the memory of the host.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    for dimension in range(tensor.device_mesh.ndim):  # as the tensor was divided last, first: one gather at a time
        placements = list(tensor.placements)
        placements[dimension] = Replicate()
        tensor = tensor.redistribute(placements=placements)
    return order.whole(name, tensor.to_local().detach().cpu()) if keep else None


def own_tensor(name: str, whole: Any, like: Tensor, order: RowOrder) -> Any:
    """Return this worker's part of a tensor that is whole on all, if ``like`` is divided and has its shape."""
    if not isinstance(like, DTensor) or not isinstance(whole, Tensor) or whole.shape != like.shape:
        return whole
    ordered = order.sliced(name, whole.to(like.device)).contiguous()
    return distribute_tensor(ordered, like.device_mesh, like.placements, src_data_rank=None)


# The model.


def whole_tensors(tensors: dict[str, Tensor], order: RowOrder, *, keep: bool = True) -> dict[str, Tensor]:
    """Gather tensors by the names of their parameters, one after the other; all workers must call it.

    Those that shall not ``keep`` them get nothing.
    """
    found = {name: whole_tensor(name, tensor, order, keep=keep) for name, tensor in tensors.items()}
    return found if keep else {}


def gather_model_state(model: nn.Module, group: dist.ProcessGroup | None) -> dict[str, Tensor]:
    """Return the whole model's state on the first worker of a pipeline, nothing on the others; all must call it."""
    state = model.state_dict()
    parts = _gathered({name: tensor.cpu() for name, tensor in state.items() if is_kept(tensor)}, group)
    merged: dict[str, Tensor] = {}
    for part in reversed(parts):  # the copy of the first worker that has it
        merged |= part
    return {name: merged[name] for name in state} if parts else {}


def load_model_state(model: nn.Module, state: dict[str, Any], order: RowOrder | None = None) -> None:
    """Load this worker's part of a whole model's state."""
    own = model.state_dict()
    if missing := sorted(own.keys() ^ state.keys()):
        raise RuntimeError(f"{missing[0]} is not in both the model and the state")
    load_tensors(own, state, order or RowOrder())


def load_tensors(own: dict[str, Tensor], state: dict[str, Any], order: RowOrder) -> None:
    """Copy this worker's part of whole tensors into its tensors, by name."""
    with torch.no_grad():
        for name, tensor in own.items():
            if not is_kept(tensor):
                continue
            if tensor.shape != state[name].shape:
                raise RuntimeError(f"{name} has shape {list(tensor.shape)}, not {list(state[name].shape)}")
            local(tensor).copy_(local(own_tensor(name, state[name], tensor, order)))


# The optimizer.


def split_groups(optimizer: Optimizer, names: dict[int, str]) -> None:
    """Divide parameter groups such that the parameters of each are divided over the same workers, or all whole.

    torch's fused and multi-tensor kernels take no mixture. The groups keep the options of the one that they come from.

    Args:
        optimizer: a new optimizer, which has made no step.
        names: the parameters' names by id.
    """
    groups: list[dict[str, Any]] = []
    for number, group in enumerate(optimizer.param_groups):
        of_mesh: dict[Any, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
            of_mesh.setdefault(mesh, []).append(parameter)
        origin = {"number": number, "names": [names[id(one)] for one in group["params"]]}
        for members in of_mesh.values():
            part = {**group, "params": members, WHOLE: origin}
            if "param_names" in group:
                part["param_names"] = [names[id(one)] for one in members]
            groups.append(part)
    optimizer.param_groups[:] = groups


def whole_optimizer_state(
    model: nn.Module, optimizer: Optimizer, order: RowOrder, *, keep: bool = True
) -> dict[str, Any]:
    """Return the optimizer's state of the whole model, of which all workers have parts; all must call it."""
    parts = _own_groups(model, optimizer)
    for group in parts:
        for name, state in group["states"].items():
            if state is not None:
                found = {key: whole_tensor(name, value, order, keep=keep) for key, value in state.items()}
                group["states"][name] = found
    return _assembled(model, [parts]) if keep else {}


def gather_optimizer_state(model: nn.Module, optimizer: Optimizer, group: dist.ProcessGroup | None) -> dict[str, Any]:
    """Return the optimizer's state of the whole model on the first worker of a pipeline; all must call it."""
    parts = _gathered(_own_groups(model, optimizer), group)
    return _assembled(model, parts) if parts else {}


def _own_groups(model: nn.Module, optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the options and, by name of a parameter, the states of this worker's groups."""
    local_state = optimizer.state_dict()
    return [
        {
            "number": _number_in_whole(each, number),
            "names": each[WHOLE]["names"] if WHOLE in each else None,
            "options": {key: value for key, value in each.items() if key not in _NOT_OPTIONS},
            "states": {
                name: local_state["state"].get(index) for name, index in zip(of_group, each["params"], strict=True)
            },
        }
        for number, (each, of_group) in enumerate(
            zip(local_state["param_groups"], _names(model, optimizer), strict=True)
        )
    ]


def _assembled(model: nn.Module, parts: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the state dict of the whole model's optimizer from the groups of the workers."""
    order = {name: place for place, (name, _) in enumerate(model.named_parameters())}
    merged: dict[int, dict[str, Any]] = {}
    for found in (group for part in parts for group in part):
        into = merged.setdefault(found["number"], {**found, "states": {}})
        into["states"] |= {name: one for name, one in found["states"].items() if name not in into["states"]}
    state: dict[int, Any] = {}
    groups: list[dict[str, Any]] = []
    count = 0
    for number in sorted(merged):
        found = merged[number]
        ordered = found["names"] or sorted(found["states"], key=order.__getitem__)
        indices = list(range(count, count + len(ordered)))
        count += len(ordered)
        named = zip(indices, ordered, strict=True)
        state |= {index: found["states"][name] for index, name in named if found["states"][name] is not None}
        groups.append({**found["options"], "param_names": ordered, "params": indices})
    return {"state": state, "param_groups": groups}


def own_optimizer_state(
    model: nn.Module, optimizer: Optimizer, whole: dict[str, Any], order: RowOrder | None = None
) -> dict[str, Any]:
    """Return this worker's part of the state of an optimizer of the whole model, for ``load_state_dict``."""
    own = optimizer.state_dict()
    origins = {each[WHOLE]["number"]: each[WHOLE]["names"] for each in own["param_groups"] if WHOLE in each}
    states: dict[str, Any] = {}
    options: dict[int, dict[str, Any]] = {}
    for number, each in enumerate(whole["param_groups"]):
        place = _number_in_whole(each, number) if not origins else number
        options[place] = {key: value for key, value in each.items() if key not in _NOT_OPTIONS}
        names = each["param_names"] if "param_names" in each else origins[place]  # one worker's own optimizer has none
        for name, index in zip(names, each["params"], strict=True):
            states[name] = whole["state"].get(index)
    parameters = dict(model.named_parameters())
    state: dict[int, Any] = {}
    groups = []
    for number, (each, of_group) in enumerate(zip(own["param_groups"], _names(model, optimizer), strict=True)):
        former = options[_number_in_whole(each, number)]
        groups.append({**each, **{key: value for key, value in former.items() if key not in IMPLEMENTATION}})
        for index, name in zip(each["params"], of_group, strict=True):
            if (found := states[name]) is not None:
                like = parameters[name]
                state[index] = {key: own_tensor(name, one, like, order or RowOrder()) for key, one in found.items()}
    return {**own, "state": state, "param_groups": groups}


def _names(model: nn.Module, optimizer: Optimizer) -> list[list[str]]:
    """Return the names of the parameters of each group."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [[names[id(one)] for one in group["params"]] for group in optimizer.param_groups]


def _number_in_whole(group: dict[str, Any], number: int) -> int:
    """Return which group of the whole model a group is: a stage may have no parameters of one of them."""
    if WHOLE in group:
        return int(group[WHOLE]["number"])
    return int(not group["adapt"]) if "adapt" in group else number


def _gathered(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """Gather objects on the first worker of a group; the others get an empty list."""
    is_first = dist.get_rank(group) == 0
    found: list[Any] = [None] * dist.get_world_size(group) if is_first else []
    dist.gather_object(value, found if is_first else None, group=group, group_dst=0)
    return found
