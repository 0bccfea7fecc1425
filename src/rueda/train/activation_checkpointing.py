"""Activation checkpointing: layers keep their inputs only, and are computed again in the backward pass.

The forward pass keeps the activations of every operation, since the backward pass needs them: for n layers, memory that
grows with n. Chen et al. (2016, 1604.06174) keep the inputs of some layers only, and compute what lies between when the
backward pass arrives there. Of a chain of n layers that is cut into sqrt(n) segments, the inputs of the segments and
the activations of one segment are in memory at a time: O(sqrt(n)), for one more forward pass.

What is recomputed as one *segment*, the first that a model has of

- each layer that the task names, ``Task(layers=...)``, or the model's method ``pipeline_layers()``,
- the outermost containers of the model: each module of an ``nn.ModuleList`` (the blocks of a transformer), and the
  children of an ``nn.Sequential``, cut into about sqrt(n) segments.

The recomputation is that of ``torch.utils.checkpoint`` (not reentrant), which restores the random numbers of dropout
and the autocast. It begins with the buffers as they were before the forward pass, and puts back what they are
afterwards, so that batch norm updates its running statistics once. So the numbers are the same as without.

The layers' ``forward`` is replaced during the forward pass of a training only: names, state dicts and pickles of the
model are what they always are, and an evaluation keeps no activations anyway. In a pipeline each stage calls its own
segments (:func:`segments_of`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from rueda.data.nest import tensors
from rueda.errors import TaskError
from rueda.train.buffers import write_buffers
from rueda.train.parallel.stages import Layers, passing


class Segment:
    """Some layers that are computed again in the backward pass.

    Args:
        layers: modules of which each passes its output to the next one.
        forward: computes them.
        name: what errors call it.
    """

    def __init__(self, layers: Sequence[nn.Module], forward: Callable[..., Any], name: str) -> None:
        self._layers, self._forward, self._name = layers, forward, name
        self._changing: set[int] | None = None  # positions of the buffers that its first pass changed

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Compute the output, and keep the inputs only.

        Raises:
            TaskError: a layer overwrites the segment's input, from which it could not be computed again.
        """
        if not torch.is_grad_enabled():
            return self._forward(*inputs, **named)
        buffers, given = self._buffers(), list(tensors([inputs, named]))
        kept = range(len(buffers)) if self._changing is None else self._changing
        before = {position: buffers[position].clone() for position in kept}
        versions = [one._version for one in given]
        result = checkpoint(
            self._forward, *inputs, use_reentrant=False, context_fn=lambda: (nullcontext(), self._rewound(before)),
            **named,
        )  # fmt: skip
        if [one._version for one in given] != versions:
            raise TaskError(
                f"activation_checkpointing computes {self._name} again from its input, which it overwrites (inplace); "
                "set inplace=False there, or leave activation_checkpointing out"
            )
        if self._changing is None:
            now = self._buffers()  # compared by value: batch norm writes its own without a new version
            self._changing = {place for place, one in before.items() if not torch.equal(now[place], one)}
            for place in before.keys() - self._changing:
                del before[place]  # such as masks, which may be large
        return result

    def _buffers(self) -> list[Tensor]:
        return [buffer for layer in self._layers for buffer in layer.buffers()]

    @contextmanager
    def _rewound(self, before: dict[int, Tensor]) -> Iterator[None]:
        """Let the layers begin with the buffers that they had before their forward pass."""
        buffers = self._buffers()
        changing = [buffers[position] for position in before]
        after = [one.clone() for one in changing]
        write_buffers(changing, before.values())
        try:
            yield
        finally:
            write_buffers(changing, after)


class Recomputation:
    """The segments of a model.

    Args:
        model: the model.
        own: the task's function that returns its layers.
        task: the name of the task, for messages.

    Raises:
        TaskError: the model has no layers that are known.

    >>> model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(9)))
    >>> Recomputation(model).num_segments
    3
    """

    def __init__(self, model: nn.Module, own: Layers | None = None, *, task: str = "this task") -> None:
        self._forwards = dict(_replacements(model, own))
        self.num_segments = sum(replaced.num_segments for replaced in self._forwards.values())
        """how many parts of the model are computed again, each by itself"""
        self._depth = 0  # virtual workers in lock-step enter one after the other
        self._former: dict[nn.Module, Any] = {}
        if not self._forwards:
            raise TaskError(
                f"the model of task {task}", expected="layers that activation_checkpointing can compute again",
                got=f"{type(model).__name__} without an nn.Sequential or nn.ModuleList",
                do="name them: Task(layers=lambda model: [...])",
            )  # fmt: skip

    @contextmanager
    def of_forward_pass(self) -> Iterator[None]:
        """Let the layers of the model keep their inputs only, in the forward pass inside the block."""
        self._depth += 1
        if self._depth == 1:
            self._former = {module: module.__dict__.get("forward") for module in self._forwards}
            for module, forward in self._forwards.items():
                module.forward = forward
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                for module, former in self._former.items():
                    module.__dict__.pop("forward")
                    if former is not None:
                        module.forward = former


class _Layer:
    """The forward pass of one module as a segment."""

    num_segments = 1

    def __init__(self, module: nn.Module, name: str) -> None:
        self._segment = Segment([module], module.forward, name)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        return self._segment(*inputs, **named)


class _Chain:
    """The forward pass of an ``nn.Sequential`` in segments."""

    def __init__(self, chain: nn.Sequential, name: str) -> None:
        layers = list(chain)
        self._segments = [
            Segment(part, passing(part, unpacks=False), f"{name}[{start}:{end}]")
            for start, end in _cuts(layers)
            if (part := layers[start:end])
        ]
        self.num_segments = len(self._segments)

    def __call__(self, value: Any) -> Any:
        for segment in self._segments:
            value = segment(value)
        return value


def segments_of(layers: Sequence[nn.Module], *, one_by_one: bool) -> list[Callable[..., Any]]:
    """Return the segments of layers of which each passes its output to the next one, as a stage of a pipeline has them.

    Args:
        layers: the layers; what one of them returns as a tuple becomes several arguments of the next one.
        one_by_one: whether each layer is a segment, as those that a task or a model names; otherwise there are about
            as many as the square root of their number.
    """
    cuts = [(place, place + 1) for place in range(len(layers))] if one_by_one else _cuts(layers)
    parts = [layers[start:end] for start, end in cuts]
    return [Segment(part, passing(part), type(part[0]).__name__) if _keeps_more(part) else part[0] for part in parts]


def _keeps_more(layers: Sequence[nn.Module]) -> bool:
    return len(layers) > 1 or _worth(layers[0])


def _cuts(layers: Sequence[nn.Module]) -> list[tuple[int, int]]:
    """Cut a chain into about sqrt(n) segments, none of which begins with a layer that overwrites its input.

    >>> _cuts([nn.Linear(1, 1), nn.Linear(1, 1), nn.ReLU(inplace=True), nn.Linear(1, 1), nn.ReLU()])
    [(0, 3), (3, 5)]
    """
    count = max(1, round(math.sqrt(len(layers))))
    starts = {0}
    for number in range(1, count):
        start = number * len(layers) // count
        while start < len(layers) and getattr(layers[start], "inplace", False):
            start += 1
        starts.add(start)
    ends = sorted({*starts, len(layers)})
    return list(pairwise(ends))


def _replacements(model: nn.Module, own: Layers | None) -> Iterator[tuple[nn.Module, _Layer | _Chain]]:
    """Yield the modules whose forward pass is replaced, with what replaces it."""
    named = {module: name or "the model" for name, module in model.named_modules()}
    method = getattr(model, "pipeline_layers", None)
    divide = own or (None if method is None else lambda _: method())
    if divide is not None:  # some may exist for a pipeline only, such as an embedding with its positions
        yield from ((layer, _Layer(layer, named[layer])) for layer in divide(model) if layer in named and _worth(layer))
        return
    todo = [model]
    while todo:
        module = todo.pop()
        if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
            if len(module) > 0:
                yield module, _Chain(module, named[module])
        elif isinstance(module, nn.ModuleList):
            for child in module:
                if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
                    todo.append(child)
                elif _worth(child):
                    yield child, _Layer(child, named[child])
        else:
            todo.extend(module.children())


def _worth(layer: nn.Module) -> bool:
    """Tell whether a layer keeps more than its input: not batch norm, whose forward pass a rehearsal replaces."""
    return not isinstance(layer, _NormBase)
