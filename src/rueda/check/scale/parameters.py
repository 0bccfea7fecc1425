"""The parameters whose gradients are averaged: those of every module and of every optimizer of the script."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet, ref

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from rueda.check.patches import Patches


class ParameterRegistry:
    """Collects parameters in the order in which the script registers them, which is the same on all ranks.

    A module's parameters are collected where the module registers them, so that a loop without an optimizer
    (``p -= rate * p.grad``) is scaled as well; an optimizer's where it gets them, so that plain tensors are, too.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[int, ref[Tensor]]] = {}  # by id: its number, and the parameter
        self._num_added = 0
        self._optimizers: WeakSet[Any] = WeakSet()
        self._buffers: dict[tuple[int, str], ref[Any]] = {}  # by the id of a module and a name: the module

    def install(self, patches: Patches) -> None:
        """Follow modules and optimizers."""
        handle = register_module_parameter_registration_hook(lambda module, name, parameter: self._add(parameter))
        patches.on_undo(handle.remove)
        patches.on_undo(register_module_buffer_registration_hook(self._add_buffer).remove)
        patches.replace(torch.optim.Optimizer, "add_param_group", self._adding)

    def _adding(self, original: Any) -> Any:
        def add_param_group(optimizer: Any, group: Any) -> None:
            original(optimizer, group)
            self._optimizers.add(optimizer)
            for parameter in optimizer.param_groups[-1]["params"]:
                self._add(parameter)

        return add_param_group

    def _add(self, parameter: Tensor | None) -> None:
        if isinstance(parameter, Tensor) and parameter not in self:
            self._num_added += 1
            self._found.pop(id(parameter), None)  # of a tensor that no longer exists
            self._found[id(parameter)] = (self._num_added, ref(parameter))

    def _add_buffer(self, module: Any, name: str, buffer: Tensor | None) -> None:
        if not isinstance(module, _BatchNorm):  # whose statistics are averaged
            self._buffers[id(module), name] = ref(module)

    def num_optimizers(self) -> int:
        """Return the number of optimizers that still exist."""
        return len(self._optimizers)

    def buffers(self) -> list[tuple[str, Tensor]]:
        """Return the buffers that still exist, with their names; those of batch norm are left out."""
        found = []
        for (_, name), one in list(self._buffers.items()):
            module = one()
            buffer = None if module is None else module._buffers.get(name)
            if isinstance(buffer, Tensor):
                found.append((f"{type(module).__name__}.{name}", buffer))
        return found

    def __contains__(self, tensor: Tensor) -> bool:
        found = self._found.get(id(tensor))
        return found is not None and found[1]() is tensor

    def number(self, tensor: Tensor) -> int:
        """Return the number of a parameter's registration, from 1; 0 if it is not known."""
        return self._found[id(tensor)][0] if tensor in self else 0

    def alive(self) -> dict[int, Tensor]:
        """Return the parameters that still exist, by the number of their registration, in its order."""
        found = {number: parameter for number, one in self._found.values() if (parameter := one()) is not None}
        if len(found) < len(self._found):
            self._found = {key: entry for key, entry in self._found.items() if entry[1]() is not None}
        return found
