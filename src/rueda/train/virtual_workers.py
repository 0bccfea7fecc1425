"""What every virtual worker of a rehearsal has of its own: random numbers, running statistics and other buffers.

A real worker draws from its own stream, normalises its own examples and notes what it likes in its own buffers. Virtual
workers share one model; here each finds its own as long as it is its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode

from rueda.world.seeds import seed_worker

_RANDOM = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)


class Streams:
    """The random numbers of all workers in one step: a function of (seed, rank, step).

    A data set may have drawn from a worker's stream while it read that worker's examples; the model goes on from there.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._step = -1
        self._left_by_data: dict[int, Tensor] = {}

    def begin(self, step: int) -> None:
        """Begin a step: nobody has drawn anything."""
        self._step = step
        self._left_by_data.clear()

    @contextmanager
    def reading(self, rank: int) -> Iterator[None]:
        """Be a worker that reads its examples."""
        seed_worker(self._seed, rank, self._step)
        yield
        self._left_by_data[rank] = torch.get_rng_state()

    def enter(self, rank: int, step: int) -> Tensor:
        """Be a worker whose examples are there, and give the state of its stream."""
        seed_worker(self._seed, rank, step)
        if step == self._step and rank in self._left_by_data:
            torch.set_rng_state(self._left_by_data[rank])
        return torch.get_rng_state()


class Group(TorchFunctionMode):
    """Workers that go through the network together; each draws its dropout masks from its own stream."""

    def __init__(self, streams: Streams, ranks: range, step: int) -> None:
        super().__init__()
        self.ranks = ranks
        self._states = [streams.enter(rank, step) for rank in ranks]

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Draw worker by worker; leave everything else."""
        options = dict(kwargs or {})
        if function not in _RANDOM or len(self._states) == 1:
            return function(*args, **options)
        whole, rest = (args[0], args[1:]) if args else (options.pop("input"), ())
        if whole.shape[0] % len(self._states):  # not examples first: that is met when the ways are compared
            return function(whole, *rest, **options)
        parts = []
        length = whole.shape[0] // len(self._states)
        for number, state in enumerate(self._states):
            torch.set_rng_state(state)
            # Not by chunk(): of the views that it gives none may be written to, as dropout in place does.
            parts.append(function(whole.narrow(0, number * length, length), *rest, **options))
            self._states[number] = torch.get_rng_state()
        return torch.cat(parts)


class Statistics:
    """The running statistics of normalisation layers: each worker updates its own copy, the mean is what stays."""

    def __init__(self, layers: list[_NormBase], size: int) -> None:
        self._size = size
        self._sums = {layer: {name: torch.zeros_like(buffer) for name, buffer in _own(layer)} for layer in layers}

    @contextmanager
    def of(self, ranks: range) -> Iterator[None]:
        """Let the layers work worker by worker."""
        with ExitStack() as stack:
            copies = {layer: stack.enter_context(_by_worker(layer, len(ranks))) for layer in self._sums}
            yield
        for layer, workers in copies.items():
            for buffers in workers:
                for name, buffer in buffers.items():
                    self._sums[layer][name] += buffer

    def write(self) -> None:
        """Store the mean over all workers."""
        for layer, sums in self._sums.items():
            for name, buffer in _own(layer):
                mean = sums[name] / self._size
                buffer.copy_(mean if buffer.is_floating_point() else mean.round())


def _own(layer: _NormBase) -> list[tuple[str, Tensor]]:
    return [(name, buffer) for name, buffer in layer._buffers.items() if buffer is not None]


@contextmanager
def _by_worker(layer: _NormBase, size: int) -> Iterator[list[dict[str, Tensor]]]:
    """Normalise each worker's part of the batch by itself, with running statistics of its own, which are given."""
    original: Callable[[Tensor], Tensor] = layer.forward
    buffers = dict(layer._buffers)
    copies = [{name: buffer.clone() for name, buffer in _own(layer)} for _ in range(size)]

    def forward(inputs: Tensor) -> Tensor:
        if inputs.shape[0] % size:  # not examples first, see Group
            return original(inputs)
        outputs = []
        for copy, part in zip(copies, inputs.chunk(size), strict=True):
            layer._buffers.update(copy)  # not copied into: the backward pass wants them unchanged
            outputs.append(original(part))
        return outputs[0] if size == 1 else torch.cat(outputs)

    layer.forward = forward
    try:
        yield copies
    finally:
        layer.__dict__.pop("forward", None)
        layer._buffers.update(buffers)


class OwnBuffers:
    """Buffers that the model itself changes while it trains, a copy for every worker; the model holds rank 0's."""

    def __init__(self, buffers: dict[str, Tensor], size: int) -> None:
        self._buffers = list(buffers.values())
        self._size = size
        self._copies: list[list[Tensor]] = []

    @contextmanager
    def of(self, rank: int) -> Iterator[None]:
        """Be a worker, with what it has noted so far."""
        if not self._buffers:
            yield
            return
        if not self._copies:
            self._copies = [[buffer.clone() for buffer in self._buffers] for _ in range(self._size)]
        _write(self._buffers, self._copies[rank])
        yield
        self._copies[rank] = [buffer.clone() for buffer in self._buffers]
        _write(self._buffers, self._copies[0])

    def take_those_of_rank_0(self) -> None:
        """Drop all copies, so that every worker goes on with rank 0's buffers, which the model holds."""
        self._copies.clear()


@contextmanager
def put_back(model: nn.Module) -> Iterator[None]:
    """Let the buffers of a model be as they were when the block ends."""
    buffers = list(model.buffers())
    kept = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        _write(buffers, kept)


def _write(buffers: list[Tensor], values: list[Tensor]) -> None:
    with torch.no_grad():
        for buffer, value in zip(buffers, values, strict=True):
            buffer.copy_(value)
