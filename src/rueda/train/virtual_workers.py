"""The per-worker state of a rehearsal: random numbers, running statistics and other buffers.

A real worker has its own random number generator, its own running statistics and its own buffers. Virtual workers share
one model and one process; the classes here swap in the state of the worker whose examples are being processed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode

from rueda.train.buffers import write_buffers
from rueda.train.random_state import GeneratorStates, restore_torch_states, torch_states
from rueda.world.seeds import seed_worker

_RANDOM = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)


class RandomStreams:
    """The random number generators of all virtual workers in one step, seeded by (seed, rank, step).

    A data set may draw from a worker's generator while it reads that worker's examples; the model then continues from
    the state that the data set left.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._device = device
        self._step = -1
        self._left_by_data: dict[int, GeneratorStates] = {}

    def begin(self, step: int) -> None:
        """Begin a step with freshly seeded generators."""
        self._step = step
        self._left_by_data.clear()

    @contextmanager
    def reading(self, rank: int) -> Iterator[None]:
        """Seed the generators for one worker while its examples are read, and remember the state they leave."""
        seed_worker(self._seed, rank, self._step)
        yield
        self._left_by_data[rank] = self.states()

    def enter(self, rank: int, step: int) -> GeneratorStates:
        """Set torch's generators to one worker's states after its examples were read, and return these states."""
        seed_worker(self._seed, rank, step)
        if step == self._step and rank in self._left_by_data:
            self.restore(self._left_by_data[rank])
        return self.states()

    def states(self) -> GeneratorStates:
        """Return the states of torch's generators on the CPU and on the device: dropout draws on the latter."""
        return torch_states(self._device)

    def restore(self, states: GeneratorStates) -> None:
        """Set torch's generators to states that :meth:`states` returned."""
        restore_torch_states(states)


class WorkerGroup(TorchFunctionMode):
    """Virtual workers that pass through the network at once; each draws its dropout masks from its own generator."""

    def __init__(self, streams: RandomStreams, ranks: range, step: int) -> None:
        super().__init__()
        self.ranks = ranks
        self._streams = streams
        self._states = [streams.enter(rank, step) for rank in ranks]

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run dropout worker by worker, and every other function unchanged."""
        options = dict(kwargs or {})
        if function not in _RANDOM or len(self._states) == 1:
            return function(*args, **options)
        whole, rest = (args[0], args[1:]) if args else (options.pop("input"), ())
        if whole.shape[0] % len(
            self._states
        ):  # the first dimension is not the batch; `_compare_ways` finds out whether that matters
            return function(whole, *rest, **options)
        parts = []
        length = whole.shape[0] // len(self._states)
        for number, state in enumerate(self._states):
            self._streams.restore(state)
            # Not chunk(): its views do not allow in-place operations such as dropout(inplace=True).
            parts.append(function(whole.narrow(0, number * length, length), *rest, **options))
            self._states[number] = self._streams.states()
        return torch.cat(parts)


class RunningStatistics:
    """Running statistics of normalisation layers: each worker updates its own copy, and their mean is stored."""

    def __init__(self, layers: list[_NormBase], size: int) -> None:
        self._size = size
        self._sums = {
            layer: {name: torch.zeros_like(buffer) for name, buffer in _buffers_of(layer)} for layer in layers
        }

    @contextmanager
    def of(self, ranks: range) -> Iterator[None]:
        """Make the layers normalise worker by worker inside the block."""
        with ExitStack() as stack:
            copies = {layer: stack.enter_context(_by_worker(layer, len(ranks))) for layer in self._sums}
            yield
        for layer, workers in copies.items():
            for buffers in workers:
                for name, buffer in buffers.items():
                    self._sums[layer][name] += buffer

    def write(self) -> None:
        """Store the mean over all workers in the layers."""
        for layer, sums in self._sums.items():
            for name, buffer in _buffers_of(layer):
                mean = sums[name] / self._size
                buffer.copy_(mean if buffer.is_floating_point() else mean.round())


def _buffers_of(layer: _NormBase) -> list[tuple[str, Tensor]]:
    return [(name, buffer) for name, buffer in layer._buffers.items() if buffer is not None]


@contextmanager
def _by_worker(layer: _NormBase, size: int) -> Iterator[list[dict[str, Tensor]]]:
    """Make a layer normalise each worker's part of the batch separately; yield the workers' running statistics."""
    original: Callable[[Tensor], Tensor] = layer.forward
    buffers = dict(layer._buffers)
    copies = [{name: buffer.clone() for name, buffer in _buffers_of(layer)} for _ in range(size)]

    def forward(inputs: Tensor) -> Tensor:
        if inputs.shape[0] % size:  # the first dimension is not the batch, see WorkerGroup
            return original(inputs)
        outputs = []
        for copy, part in zip(copies, inputs.chunk(size), strict=True):
            layer._buffers.update(copy)  # swapped, not copied: autograd needs the old ones unchanged
            outputs.append(original(part))
        return outputs[0] if size == 1 else torch.cat(outputs)

    layer.forward = forward
    try:
        yield copies
    finally:
        layer.__dict__.pop("forward", None)
        layer._buffers.update(buffers)


class WorkerBuffers:
    """One copy per worker of the buffers that the model itself changes in training; the model holds rank 0's copy."""

    def __init__(self, buffers: dict[str, Tensor], size: int) -> None:
        self._buffers = list(buffers.values())
        self._size = size
        self._copies: list[list[Tensor]] = []

    @contextmanager
    def of(self, rank: int) -> Iterator[None]:
        """Load one worker's copy into the model inside the block, and save it afterwards."""
        if not self._buffers:
            yield
            return
        if not self._copies:
            self._copies = [[buffer.clone() for buffer in self._buffers] for _ in range(self._size)]
        write_buffers(self._buffers, self._copies[rank])
        yield
        self._copies[rank] = [buffer.clone() for buffer in self._buffers]
        write_buffers(self._buffers, self._copies[0])

    def reset_to_rank_0(self) -> None:
        """Drop all copies, so that every worker continues with rank 0's buffers, which the model holds."""
        self._copies.clear()
