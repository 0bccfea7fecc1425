"""Shard a model: every worker keeps a part of each parameter, gradient and optimizer state (ZeRO 3, FSDP2).

The model is that of torch's ``fully_shard`` (Rajbhandari et al. 2020, arXiv:1910.02054; Zhao et al. 2023,
arXiv:2304.11277). The parameters of a layer are gathered before its forward pass, freed after it, gathered again before
its backward pass, and its gradients are averaged by a reduce-scatter. What belongs to no layer is gathered for the
whole step, together: embeddings, whose weights a model may read without calling them, parameters that several modules
share, scales and biases of their own, and layers that are small beside the largest one, for which three collectives
take more time than they are worth in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from rueda.data.nest import map_tensors
from rueda.errors import RecipeError
from rueda.tasks.step import Losses
from rueda.train.parallel.layer_names import layers_of
from rueda.train.parallel.stages import Layers
from rueda.train.parallel.tensor_plan import shared_parameters
from rueda.train.step_module import StepModule

SMALL_SHARE = 0.1
"""a layer with less than this share of the parameters of the largest one is not gathered by itself"""


def sharded_layers(model: nn.Module, own: Layers | None = None) -> list[nn.Module]:
    """Return the modules whose parameters are gathered by themselves.

    Args:
        model: the model.
        own: the task's function that divides it; layers that are not modules of the model are left out, small ones are
            not.

    >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.LayerNorm(4))
    >>> [type(layer).__name__ for layer in sharded_layers(model)]
    ['Linear']
    >>> len(sharded_layers(nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 2))))
    1
    """
    known = {id(module) for module in model.modules()}
    candidates = own(model) if own is not None else [model.get_submodule(name) for name in layers_of(model)]
    shared = shared_parameters(model)
    found: list[nn.Module] = []
    for layer in dict.fromkeys(candidates):  # one that is used several times is sharded once
        parameters = list(layer.parameters())
        is_own = id(layer) in known and layer is not model and not isinstance(layer, nn.Embedding)
        has_weights = any(one.dim() > 1 for one in parameters)
        if is_own and has_weights and not any(id(one) in shared for one in parameters):
            found.append(layer)
    if own is not None:
        return found
    sizes = [sum(one.numel() for one in layer.parameters()) for layer in found]
    return [layer for layer, size in zip(found, sizes, strict=True) if size >= SMALL_SHARE * max(sizes)]


class ShardedStep(StepModule):
    """The step of a sharded model.

    The backward pass gathers what a module needs by a hook on the tensors that the module returns; an operation in
    place on a view of another tensor would drop it. So the losses and the outputs of layers are no views.
    """

    def forward(self, batch: Any) -> Losses:
        """Run the task's step; metrics need the outputs only."""
        result = super().forward(batch)
        outputs = map_tensors(Tensor.detach, result.outputs)
        return result._replace(losses=_without_view(result.losses), outputs=outputs)


def _without_view(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) and value._is_view() else value


def _return_no_view(module: nn.Module, inputs: Any, outputs: Any) -> Any:
    return map_tensors(_without_view, outputs)


def shard(step: ShardedStep, layers: Sequence[nn.Module], mesh: DeviceMesh) -> FSDPModule:
    """Shard the layers of a step's model, and what is left of it with the step; return the step.

    Args:
        step: the module whose forward pass is the step of a task.
        layers: the modules that are gathered by themselves.
        mesh: the workers: of one dimension, or of two, of which the first is that of the replicas.

    Raises:
        RecipeError: a parameter has no dimension that could be divided.
    """
    for name, parameter in step.named_parameters():
        if parameter.dim() == 0:
            do = "make it one of shape [1], or use another form"
            raise RecipeError(
                "parallel = 'sharded'", expected="parameters with a dimension that workers can divide",
                got=f"{name.removeprefix('model.')} of shape []", do=do,
            )  # fmt: skip
    for layer in layers:
        layer.register_forward_hook(_return_no_view)
        fully_shard(layer, mesh=mesh)
    root: FSDPModule = fully_shard(step, mesh=mesh)
    if dist.get_backend(mesh.get_group(mesh.ndim - 1)) == "gloo":  # it has no average: the sum is divided afterwards
        for module in parts_of(root):
            module.set_force_sum_reduction_for_comms(True)
    return root


def parts_of(root: FSDPModule) -> list[FSDPModule]:
    """Return all sharded modules of a step."""
    module: Any = root
    return [one for one in module.modules() if isinstance(one, FSDPModule)]


def reshard(root: FSDPModule) -> None:
    """Free all gathered parameters: after a forward pass without a backward pass, those outside the layers stay."""
    for module in parts_of(root):
        module.reshard()


@contextmanager
def gathered(root: FSDPModule) -> Iterator[None]:
    """Hold all parameters on each worker inside the block, so that workers may make different numbers of passes."""
    parts = parts_of(root)
    for module in parts:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in parts:
            module.reshard()
            module.set_reshard_after_forward(module is not root, recurse=False)
