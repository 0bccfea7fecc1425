"""The state of a divided model as that of one worker: gathered for a checkpoint, and divided again.

Tensors keep the names of the whole model and optimizer states the order of its parameters, so that a checkpoint of a
pipeline resumes on one worker, or with any other division, and the other way round.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from rueda.train.parallel.stages import is_kept


def gather_model_state(model: nn.Module, group: dist.ProcessGroup | None) -> dict[str, Tensor]:
    """Return the whole model's state on the first worker of a pipeline, nothing on the others; all must call it."""
    state = model.state_dict()
    parts = _gathered({name: tensor.cpu() for name, tensor in state.items() if is_kept(tensor)}, group)
    merged: dict[str, Tensor] = {}
    for part in reversed(parts):  # the copy of the first worker that has it
        merged |= part
    return {name: merged[name] for name in state} if parts else {}


def load_model_state(model: nn.Module, state: dict[str, Any]) -> None:
    """Load this worker's part of a whole model's state."""
    own = model.state_dict()
    if missing := sorted(own.keys() ^ state.keys()):
        raise RuntimeError(f"{missing[0]} is not in both the model and the state")
    with torch.no_grad():
        for name, tensor in own.items():
            if is_kept(tensor):
                if tensor.shape != state[name].shape:
                    raise RuntimeError(f"{name} has shape {list(tensor.shape)}, not {list(state[name].shape)}")
                tensor.copy_(state[name])


def gather_optimizer_state(model: nn.Module, optimizer: Optimizer, group: dist.ProcessGroup | None) -> dict[str, Any]:
    """Return the optimizer's state of the whole model on the first worker of a pipeline; all must call it."""
    local = optimizer.state_dict()
    names = _names(model, optimizer)
    own = [
        {
            "options": {key: value for key, value in each.items() if key not in ("params", "param_names")},
            "states": {name: local["state"].get(index) for name, index in zip(of_group, each["params"], strict=True)},
        }
        for each, of_group in zip(local["param_groups"], names, strict=True)
    ]
    parts = _gathered(own, group)
    if not parts:
        return {}
    order = {name: place for place, (name, _) in enumerate(model.named_parameters())}
    merged: dict[Any, dict[str, Any]] = {}
    for part in parts:
        for number, found in enumerate(part):
            into = merged.setdefault(_key(found["options"], number), {"options": found["options"], "states": {}})
            into["states"] |= {name: one for name, one in found["states"].items() if name not in into["states"]}
    state: dict[int, Any] = {}
    groups = []
    count = 0
    for key in sorted(merged):
        found = merged[key]
        ordered = sorted(found["states"], key=order.__getitem__)
        indices = list(range(count, count + len(ordered)))
        count += len(ordered)
        state |= {
            i: found["states"][n] for i, n in zip(indices, ordered, strict=True) if found["states"][n] is not None
        }
        groups.append({**found["options"], "param_names": ordered, "params": indices})
    return {"state": state, "param_groups": groups}


def own_optimizer_state(model: nn.Module, optimizer: Optimizer, whole: dict[str, Any]) -> dict[str, Any]:
    """Return this worker's part of the state of an optimizer of the whole model, for ``load_state_dict``."""
    states: dict[str, Any] = {}
    options: dict[Any, dict[str, Any]] = {}
    for number, each in enumerate(whole["param_groups"]):
        options[_key(each, number)] = {
            key: value for key, value in each.items() if key not in ("params", "param_names")
        }  # fmt: skip
        for name, index in zip(each["param_names"], each["params"], strict=True):
            states[name] = whole["state"].get(index)
    local = optimizer.state_dict()
    names = _names(model, optimizer)
    state: dict[int, Any] = {}
    groups = []
    for number, (each, of_group) in enumerate(zip(local["param_groups"], names, strict=True)):
        groups.append({**each, **options[_key(each, number)]})
        found = {index: states[name] for name, index in zip(of_group, each["params"], strict=True)}
        state |= {index: one for index, one in found.items() if one is not None}
    return {**local, "state": state, "param_groups": groups}


def _names(model: nn.Module, optimizer: Optimizer) -> list[list[str]]:
    """Return the names of the parameters of each group."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [[names[id(one)] for one in group["params"]] for group in optimizer.param_groups]


def _key(options: dict[str, Any], number: int) -> int:
    """Return which group of the whole model a group is: a stage may have no parameters of one of them."""
    return int(not options["adapt"]) if "adapt" in options else number


def _gathered(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """Gather objects on the first worker of a group; the others get an empty list."""
    is_first = dist.get_rank(group) == 0
    found: list[Any] = [None] * dist.get_world_size(group) if is_first else []
    dist.gather_object(value, found if is_first else None, group=group, group_dst=0)
    return found
