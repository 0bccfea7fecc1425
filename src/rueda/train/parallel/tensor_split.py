"""Split the matrices of a model among the workers of a tensor group, as its plan says.

The layers become those of ``torch.distributed.tensor.parallel``: their parameters are ``DTensor`` objects of which each
worker holds a slice; activations between layers stay plain tensors. One matrix of a built-in transformer holds queries,
keys and values, one below the other. A worker needs consecutive heads of each, so the rows are put in another order
first (:class:`RowOrder`), and back where the whole matrix is gathered for a checkpoint::

    q_1 q_2 k_1 k_2 v_1 v_2   ->   q_1 k_1 v_1 | q_2 k_2 v_2
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh

from rueda.data.nest import map_tensors
from rueda.errors import RecipeError
from rueda.train.parallel.tensor_plan import COLUMNS, parts_of, split_plan, styles_of


class RowOrder:
    """The parameters whose rows are stored in another order than in the whole model.

    Args:
        slices: the number of workers that divide them.
        parts: by name of a parameter, how many matrices its rows belong to.

    >>> order = RowOrder(2, {"qkv": 3})
    >>> order.sliced("qkv", torch.arange(6)), order.whole("qkv", order.sliced("qkv", torch.arange(6)))
    (tensor([0, 2, 4, 1, 3, 5]), tensor([0, 1, 2, 3, 4, 5]))
    """

    def __init__(self, slices: int = 1, parts: Mapping[str, int] | None = None) -> None:
        self._slices, self._parts = slices, dict(parts or {})

    def sliced(self, name: str, tensor: Tensor) -> Tensor:
        """Return a tensor of the whole model as it is divided."""
        return self._transposed(tensor, self._parts.get(name, 1), self._slices)

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        """Return a gathered tensor as the whole model has it."""
        return self._transposed(tensor, self._slices, self._parts.get(name, 1))

    def _transposed(self, tensor: Tensor, outer: int, inner: int) -> Tensor:
        if min(outer, inner) == 1 or tensor.dim() == 0:
            return tensor
        divided = tensor.reshape(outer, inner, -1, *tensor.shape[1:])
        return divided.transpose(0, 1).reshape(tensor.shape)


def split_matrices(model: nn.Module, own: Mapping[str, Any] | None, mesh: DeviceMesh, task: str) -> RowOrder:
    """Split a model's matrices over a mesh of one dimension, and return in which order their rows are.

    Args:
        model: the whole model, equal on all workers.
        own: the task's plan, instead of the built-in one.
        mesh: the workers of this tensor group.
        task: the name of the task, for messages.

    Raises:
        RecipeError: there is nothing to split.
    """
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    slices = mesh.size()
    plan = split_plan(model, own, slices=slices)
    styles: dict[str, Any] = (
        styles_of(model, own)
        if own is not None
        else {name: ColwiseParallel() if how == COLUMNS else RowwiseParallel() for name, how in plan.items()}
    )
    if not styles:
        raise RecipeError(
            f"parallel = 'tensor' of task {task}",
            expected=f"two linear layers in a row, or attention, that {slices} workers can divide",
            got="none", do="give the task its plan: Task(tensor_plan={...}), or use another form",
        )  # fmt: skip
    counts = {name: parts_of(model, name) for name, how in plan.items() if how == COLUMNS}
    order = RowOrder(slices, {f"{name}.{kind}": n for name, n in counts.items() for kind in ("weight", "bias")})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if (ordered := order.sliced(name, parameter)) is not parameter:
                parameter.copy_(ordered)
    parallelize_module(model, mesh, styles)
    for name in styles:
        model.get_submodule(name).register_forward_hook(_return_plain)
    return order


class _Plain(torch.autograd.Function):
    """Gives the memory of a layer's output to a tensor that is no view and waits for no collective."""

    @staticmethod
    def forward(context: Any, output: Tensor) -> Tensor:
        """Return a tensor that has a version of its own, so that it may be overwritten in place."""
        if isinstance(output, AsyncCollectiveTensor):
            output = output.trigger_wait()  # type: ignore[no-untyped-call]
        return output.data

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        """Return the gradient as it is."""
        return gradient


def _return_plain(module: nn.Module, inputs: Any, outputs: Any) -> Any:
    """Return outputs that may be overwritten in place, and that lie at the address that they give.

    A split layer returns a view, which torch lets nobody overwrite, or a tensor without memory that a collective still
    brings, which a kernel that is not one of torch's would read at address 0. The backward pass of a linear layer does
    not read its outputs, so that these are passed on as they are; what other layers return is copied.
    """
    if isinstance(module, nn.Linear) and type(outputs) in (Tensor, AsyncCollectiveTensor):
        return _Plain.apply(outputs)  # type: ignore[no-untyped-call]
    return map_tensors(torch.clone, outputs)


def whole_layers(model: nn.Module) -> list[str]:
    """Return the names of the modules whose own parameters are whole on each worker."""
    return [
        name
        for name, module in model.named_modules()
        if any(not hasattr(one, "placements") for one in module.parameters(recurse=False))
    ]
