"""The layers of a model by name: modules in which a form of parallel training keeps everything together.

Containers (``nn.Sequential``, ``nn.ModuleList`` and the model itself) are opened, other modules are not; what has no
parameters, such as a ReLU, belongs to the layer before it.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


def layers_of(model: nn.Module) -> dict[str, list[str]]:
    """Return the layers by name, each with the modules that belong to it.

    >>> layers_of(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 2)))
    {'0': ['0', '1'], '2.0': ['2.0', '2.1'], '3': ['3']}
    """
    found: dict[str, list[str]] = {}
    for name, module in _opened(model, ""):
        if any(parameter.requires_grad for parameter in module.parameters()) or not found:
            found[name] = [name]
        else:
            next(reversed(found.values())).append(name)
    return found


def _opened(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    is_container = not name or isinstance(module, (nn.Sequential, nn.ModuleList))
    if not is_container or not any(True for _ in module.children()):
        yield name, module
        return
    for child_name, child in module.named_children():
        yield from _opened(child, f"{name}.{child_name}" if name else child_name)
