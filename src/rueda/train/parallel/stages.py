"""Stages of a pipeline: a model as a list of layers, cut into consecutive parts.

A pipeline needs a model that passes one value through its layers, one after the other. Such a model is

- an ``nn.Sequential``, whose children are the layers,
- any module with a method ``pipeline_layers()``, as the built-in transformers have it, or
- the model of a task that divides it: ``Task(layers=lambda model: [model.embed, *model.blocks, model.head])``.

Layers share their parameters with the model, so that a checkpoint names them as the model does. A parameter may belong
to layers of different stages, such as the embedding that a language model uses once more as its output layer; each of
these stages then has a copy, and :mod:`rueda.train.parallel.tied` adds up their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from rueda.data.nest import map_tensors, tensors
from rueda.errors import RecipeError, TaskError
from rueda.train.buffers import buffers_restored

Layers = Callable[[Any], Sequence[nn.Module]]
"""model -> its layers, in the order in which a batch passes through them"""


def layers_of(model: nn.Module, own: Layers | None = None, *, task: str = "this task") -> list[nn.Module]:
    """Return the layers of a model, in the order in which a batch passes through them.

    Args:
        model: the model.
        own: the task's function that divides it.
        task: the name of the task, for messages.

    Raises:
        TaskError: nothing says how to divide the model, or a parameter belongs to none of its layers.

    >>> [type(layer).__name__ for layer in layers_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))]
    ['Linear', 'ReLU']
    """
    method = getattr(model, "pipeline_layers", None)
    if own is not None:
        found = list(own(model))
    elif callable(method):
        found = list(method())
    elif is_plain_sequence(model):
        found = list(model)
    else:
        got = type(model).__name__ + (" with a forward pass of its own" if isinstance(model, nn.Sequential) else "")
        raise TaskError(
            f"the model of task {task}", expected="an nn.Sequential, which a pipeline can cut into stages", got=got,
            do="give the task its layers: Task(layers=lambda model: [...])",
        )  # fmt: skip
    wrong = [type(layer).__name__ for layer in found if not isinstance(layer, nn.Module)]
    if wrong or not found:
        got = wrong[0] if wrong else "none"
        raise TaskError(f"the layers of task {task}", expected="modules", got=got, do="return a list of nn.Module")
    known = {id(one) for layer in found for one in layer.parameters()}
    missing = [name for name, one in model.named_parameters() if id(one) not in known]
    if missing:
        do = "return every layer that has parameters"
        raise TaskError(f"the layers of task {task}", expected="all parameters", got=f"none with {missing[0]}", do=do)
    return found


def is_plain_sequence(module: nn.Module) -> TypeGuard[nn.Sequential]:
    """Return whether a module passes a value through its children; a subclass may do anything else in its forward."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def passing(layers: Sequence[Callable[..., Any]], *, unpacks: bool = True) -> Callable[..., Any]:
    """Return a function that passes a value through layers.

    Args:
        layers: the layers.
        unpacks: whether a tuple becomes several arguments of the next one; an ``nn.Sequential`` passes it as it is.
    """

    def forward(*inputs: Any, **named: Any) -> Any:
        value = layers[0](*inputs, **named)
        for layer in layers[1:]:
            value = layer(*value) if unpacks and isinstance(value, tuple) else layer(value)
        return value

    return forward


def check_layers(model: nn.Module, layers: Sequence[nn.Module], inputs: Any, named: Any, *, task: str) -> None:
    """Refuse layers that compute something else than their model, one behind the other.

    A pipeline calls the layers and not the model, so what the model does between them, such as an addition of a skip
    connection, would be left out without any error. Random numbers and buffers stay as they are.

    Args:
        model: the whole model.
        layers: its layers.
        inputs: a few inputs of the model.
        named: its inputs by name.
        task: the name of the task, for messages.

    Raises:
        TaskError: the outputs differ, or the layers cannot be called one behind the other.
    """
    expected = _outputs(model, model, inputs, named)
    found: list[Tensor] | str
    try:
        found = _outputs(model, passing(layers), inputs, named)
    except Exception as error:  # whatever a layer does with what the model never gives it
        found = f"{type(error).__name__}: {error}".splitlines()[0]
    if isinstance(found, str) or not _are_close(expected, found):
        got = found if isinstance(found, str) else "other outputs"
        do = "name modules that pass a value from one to the next and do all that model.forward does"
        raise TaskError(f"the layers of task {task}, in a row", expected="the outputs of the model", got=got, do=do)


def _outputs(model: nn.Module, forward: Callable[..., Any], inputs: Any, named: Any) -> list[Tensor]:
    """Call a function with copies of the inputs, since a layer may overwrite its own, and with the same dropout."""
    given: Any = map_tensors(torch.clone, [inputs, named])
    devices = sorted({one.device.index for one in tensors(given) if one.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices), torch.no_grad(), buffers_restored(model.buffers()):
        torch.manual_seed(0)
        return list(tensors([forward(*given[0], **given[1])]))


def _are_close(expected: Sequence[Tensor], found: Sequence[Tensor]) -> bool:
    """Return whether tensors are equal up to roundings; numbers that are not finite are equal if both are not."""
    if [(one.shape, one.dtype) for one in expected] != [(one.shape, one.dtype) for one in found]:
        return False
    for one, other in zip(expected, found, strict=True):
        size = torch.nan_to_num(one.double(), 0.0, 0.0, 0.0).abs().max().item() if one.numel() else 0.0
        if not torch.allclose(one.double(), other.double(), rtol=1e-3, atol=1e-3 * size, equal_nan=True):
            return False
    return True


class Stage(nn.Module):
    """Consecutive layers of a model; a layer that returns a tuple passes several arguments to the next one.

    Args:
        layers: the layers of this stage.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.segments: list[Callable[..., Any]] = []
        """what a forward pass of a training calls instead, to keep the inputs of some layers only"""
        self.trained = {name for name, one in self.named_parameters() if one.requires_grad}
        """the names of its trained parameters, also on workers that do not keep them"""
        self.infers_shapes = False
        """whether the next forward pass only finds the shapes of the outputs, and must not change the buffers"""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Pass the inputs through all layers."""
        if self.infers_shapes:
            self.infers_shapes = False
            copies = {name: buffer.clone() for name, buffer in self.named_buffers()}
            segments, self.segments = self.segments, []
            try:
                return torch.func.functional_call(self, copies, inputs, named)
            finally:
                self.segments = segments
        called = self.segments if self.segments and torch.is_grad_enabled() else list(self.layers)
        # A message must lie in one piece, which channels-last images, for example, do not.
        return map_tensors(torch.Tensor.contiguous, passing(called)(*inputs, **named))


def build_stages(layers: Sequence[nn.Module], ends: Sequence[int]) -> list[Stage]:
    """Cut layers into stages, of which each ends before the layer with the number in ``ends``.

    The first layer of a stage must not write into its input, which came from another worker: ``inplace`` is turned off.

    >>> [len(stage.layers) for stage in build_stages([nn.Linear(1, 1), nn.ReLU(inplace=True), nn.Linear(1, 1)], [1, 3])]
    [1, 2]
    """
    starts = [0, *ends[:-1]]
    for start in starts[1:]:
        if getattr(layers[start], "inplace", False):
            layers[start].inplace = False  # type: ignore[assignment]
    return [Stage(layers[start:end]) for start, end in zip(starts, ends, strict=True)]


def check_num_stages(num_layers: int, num_stages: int, task: str) -> None:
    """Refuse more stages than there are layers."""
    if num_layers < num_stages:
        do = "use fewer workers in the pipeline, or a model with more layers"
        raise RecipeError(
            f"the pipeline of task {task}", expected=f"{num_stages} layers or more", got=num_layers, do=do
        )


def check_trained(stages: Sequence[Stage], workers: int, task: str) -> None:
    """Refuse a pipeline of which a worker has nothing to train, such as frozen layers only; stage s is of s mod p."""
    for rank in range(workers):
        if not any(one.requires_grad for stage in stages[rank::workers] for one in stage.parameters()):
            counts = [len(stage.layers) for stage in stages]
            raise RecipeError(
                f"the pipeline of task {task}", expected="parameters that require a gradient on each of its workers",
                got=f"none on worker {rank}, of stages with {', '.join(map(str, counts))} layers",
                do="use fewer workers in the pipeline, or another form",
            )  # fmt: skip


def keep_stages(model: nn.Module, own: Sequence[Stage]) -> None:
    """Free the parameters and buffers of a model that do not belong to some stages.

    They stay in the model under their names, as tensors of the device ``meta`` that have a shape and no memory and are
    not trained.
    """
    kept = {id(one) for stage in own for one in (*stage.parameters(), *stage.buffers())}
    replaced: dict[int, Tensor] = {}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and id(parameter) not in kept:
                empty = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
                module._parameters[name] = replaced.setdefault(id(parameter), empty)  # type: ignore[assignment]
        for name, buffer in list(module._buffers.items()):
            if buffer is not None and id(buffer) not in kept:
                module._buffers[name] = replaced.setdefault(id(buffer), torch.empty_like(buffer, device="meta"))


def is_kept(tensor: Tensor) -> bool:
    """Return whether a tensor of a divided model belongs to a stage of this worker."""
    return tensor.device.type != "meta"
