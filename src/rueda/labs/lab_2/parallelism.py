"""One network, trained for a step in three ways on two workers, and the bytes that each way sends.

::

    network     x [B, w] ── W₁ [w, w] ── ReLU ── W₂ [w, w] ── y [B, w]

    data        each worker has all weights and half of the batch      gradients travel      2 w² numbers
    pipeline    worker 0 has W₁, worker 1 has W₂                       activations, and      B w numbers each way
                                                                       their gradients back
    tensor      each worker has half of the columns of W₁ and          partial sums of       2 B w numbers
                the same half of the rows of W₂                        activations

The functions are for teaching, as short as they can be; each returns the gradients, which are compared with those of
the undivided network. PyTorch has the real ones: DistributedDataParallel, ``torch.distributed.pipelining`` and
``torch.distributed.tensor.parallel``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rueda.labs.lab_2.wire import Wire
from rueda.measure.trace import StageSpan
from rueda.world import World

WAYS = {"data": "gradients", "pipeline": "activations and back", "tensor": "sums of activations"}
"""the three ways to divide a training, and what travels between the workers"""
_WARMUP = 1


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What one worker sends in one step."""

    way: str
    """a key of :data:`WAYS`"""
    batch: int
    width: int
    tensor_bytes: int
    """bytes of the tensors that a worker gave to be sent or reduced, mean over the workers"""
    sent_bytes: float | None
    """bytes that left a worker as the kernel counts them, mean over the workers; None where it does not"""
    difference: float
    """the largest difference of a gradient from that of the undivided network, relative to the largest gradient"""


@dataclass(frozen=True, kw_only=True)
class PipelineRun:
    """A step of the pipeline with the batch divided into micro-batches: when each worker computes."""

    micro_batches: int
    spans: tuple[tuple[StageSpan, ...], ...]
    """for each worker, its forward and backward passes, in seconds since the step began"""

    @property
    def seconds(self) -> float:
        """How long the step lasted."""
        return max(span.end for spans in self.spans for span in spans)

    @property
    def idle(self) -> float:
        """The share of the workers' time in which they do not compute: the bubble, and the exchange."""
        busy = sum(span.seconds for spans in self.spans for span in spans)
        return 1 - busy / (self.seconds * len(self.spans))


def bubble(micro_batches: int, stages: int = 2) -> float:
    """Return the idle share of a pipeline whose stages all take equally long: (p - 1) / (m + p - 1).

    Huang et al. 2018, GPipe: the last of p stages waits for p - 1 micro-batches before its first one, of m.

    >>> bubble(1), bubble(4), bubble(8, stages=4)
    (0.5, 0.2, 0.2727...)
    """
    return (stages - 1) / (micro_batches + stages - 1)


class Case(NamedTuple):
    """A network, its batch and its targets, the same on all workers."""

    network: nn.Sequential
    inputs: Tensor  # [B, w]
    targets: Tensor  # [B, w]


def case(batch: int, width: int) -> Case:
    """Make a network and a batch from a fixed seed."""
    draw = torch.Generator().manual_seed(0)
    network = nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU(), nn.Linear(width, width, bias=False))
    for weight in network.parameters():
        nn.init.normal_(weight, std=width**-0.5, generator=draw)
    return Case(network, torch.randn(batch, width, generator=draw), torch.randn(batch, width, generator=draw))


def undivided(this: Case) -> list[Tensor]:
    """Return the gradients of the network on one worker."""
    nn.functional.mse_loss(this.network(this.inputs), this.targets).backward()  # type: ignore[no-untyped-call]
    return [weight.grad for weight in this.network.parameters() if weight.grad is not None]


def data_parallel(this: Case, wire: Wire, world: World) -> Callable[[], list[tuple[Tensor, Any]]]:
    """Give each worker all weights and its share of the batch; DDP averages the gradients."""
    model = DistributedDataParallel(this.network)
    model.register_comm_hook(wire, lambda wire, bucket: wire.average(bucket))  # DDP reads annotations
    inputs, targets = this.inputs[world.rank :: world.size], this.targets[world.rank :: world.size]

    def step() -> list[tuple[Tensor, Any]]:
        this.network.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        return [(weight.grad, number) for number, weight in enumerate(this.network.parameters())]  # type: ignore[misc]

    return step


class _SumBackward(torch.autograd.Function):
    """The entry of a divided layer: copies forward; backward, sums the workers' gradients of its input."""

    @staticmethod
    def forward(context: Any, tensor: Tensor, wire: Wire) -> Tensor:
        context.wire = wire
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return context.wire.all_reduce(gradients[0].contiguous()), None


class _SumForward(torch.autograd.Function):
    """The exit of a divided layer: forward, sums the workers' parts of its output; copies backward."""

    @staticmethod
    def forward(context: Any, tensor: Tensor, wire: Wire) -> Tensor:
        return wire.all_reduce(tensor.clone())

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def tensor_parallel(this: Case, wire: Wire, world: World) -> Callable[[], list[tuple[Tensor, Any]]]:
    """Divide each layer: columns of the first matrix, rows of the second, so that only sums must be exchanged."""
    share = slice(world.rank * len(this.inputs[0]) // world.size, (world.rank + 1) * len(this.inputs[0]) // world.size)
    first, second = (weight.detach() for weight in this.network.parameters())  # each [out, in]
    first, second = first[share].clone().requires_grad_(), second[:, share].clone().requires_grad_()
    inputs = this.inputs.clone().requires_grad_()  # as in the middle of a network, whose earlier layers need a gradient

    def step() -> list[tuple[Tensor, Any]]:
        first.grad = second.grad = inputs.grad = None
        hidden = torch.relu(_SumBackward.apply(inputs, wire) @ first.T)  # type: ignore[no-untyped-call]
        outputs = _SumForward.apply(hidden @ second.T, wire)  # type: ignore[no-untyped-call]
        nn.functional.mse_loss(outputs, this.targets).backward()  # type: ignore[no-untyped-call]
        return [(first.grad, (0, share, slice(None))), (second.grad, (1, slice(None), share))]  # type: ignore[list-item]

    return step


def pipeline_parallel(
    this: Case, wire: Wire, world: World, micro_batches: int = 1, spans: list[StageSpan] | None = None
) -> Callable[[], list[tuple[Tensor, Any]]]:
    """Give worker 0 the first layer and worker 1 the second; micro-batches let both compute at the same time.

    Args:
        this: the network and its batch.
        wire: carries activations forward and their gradients back.
        world: two workers.
        micro_batches: into how many parts the batch is divided.
        spans: gets the passes of this worker.
    """
    noted: list[StageSpan] = [] if spans is None else spans
    layer, second = this.network[0], this.network[2]
    first = nn.Sequential(layer, nn.ReLU())
    inputs, targets = this.inputs.chunk(micro_batches), this.targets.chunk(micro_batches)

    def timed(name: str, work: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        found = work()
        noted.append(StageSpan(name, begin, time.perf_counter()))
        return found

    def on_first() -> list[tuple[Tensor, Any]]:
        hidden, leaving = [], []
        for number, part in enumerate(inputs):
            hidden.append(timed(f"forward {number + 1}", partial(first, part)))
            leaving.append(wire.send(hidden[-1].detach(), to=1))
        for number, one in enumerate(hidden):
            gradient = wire.receive(one, source=1)
            timed(f"backward {number + 1}", partial(one.backward, gradient))
        for finish in leaving:
            finish()
        return [(layer.weight.grad, 0)]  # type: ignore[list-item]

    def on_second() -> list[tuple[Tensor, Any]]:
        leaving = []
        for number, target in enumerate(targets):
            hidden = wire.receive(target, source=0).requires_grad_()
            loss = timed(f"forward {number + 1}", partial(_loss, second, hidden, target)) / micro_batches
            timed(f"backward {number + 1}", loss.backward)
            leaving.append(wire.send(hidden.grad, to=0))  # type: ignore[arg-type]
        for finish in leaving:
            finish()
        return [(second.weight.grad, 1)]  # type: ignore[list-item]

    def step() -> list[tuple[Tensor, Any]]:
        this.network.zero_grad()
        noted.clear()
        return on_first() if world.rank == 0 else on_second()

    return step


def _loss(layer: nn.Module, hidden: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(layer(hidden), target)


_STEPS = {"data": data_parallel, "pipeline": pipeline_parallel, "tensor": tensor_parallel}


def measure_traffic(world: World, batches: Sequence[int], widths: Sequence[int]) -> list[Traffic]:
    """Make a step in each way at each batch and width, and count; both workers must call this."""
    found = []
    for width in widths:
        for batch in batches:
            right = undivided(case(batch, width))
            for way, make in _STEPS.items():
                wire = Wire()
                step = make(case(batch, width), wire, world)
                for _ in range(_WARMUP):  # DDP broadcasts the parameters before its first step
                    step()
                world.barrier()
                wire.reset()
                parts = step()
                mine = (wire.tensor_bytes, wire.sent_bytes, _difference(parts, right))
                everybody = world.all_gather_object(mine)
                sent = [one[1] for one in everybody]
                found.append(
                    Traffic(
                        way=way, batch=batch, width=width, difference=max(one[2] for one in everybody),
                        tensor_bytes=round(sum(one[0] for one in everybody) / world.size),
                        sent_bytes=None if None in sent else sum(map(float, sent)) / world.size,  # type: ignore[arg-type]
                    )
                )  # fmt: skip
    return found


def measure_pipelines(
    world: World, micro_batches: Sequence[int], *, batch: int, width: int, repeats: int = 10
) -> list[PipelineRun]:
    """Time the passes of a pipelined step for several numbers of micro-batches; the fastest of some repeats counts."""
    found = []
    for number in micro_batches:
        spans: list[StageSpan] = []
        step = pipeline_parallel(case(batch, width), Wire(), world, number, spans)
        runs = []
        for _ in range(repeats + _WARMUP):
            world.barrier()
            step()
            everybody = world.all_gather_object(list(spans))
            start = min(span.begin for one in everybody for span in one)
            traces = tuple(tuple(span.since(start) for span in one) for one in everybody)
            runs.append(PipelineRun(micro_batches=number, spans=traces))
        found.append(min(runs[_WARMUP:], key=lambda run: run.seconds))
    return found


def _difference(parts: list[tuple[Tensor, Any]], right: list[Tensor]) -> float:
    """Return the largest difference of some gradients from those of the undivided network, relative to the largest."""
    largest = 0.0
    for gradient, place in parts:
        number, *slices = place if isinstance(place, tuple) else (place,)
        expected = right[number][tuple(slices)]
        largest = max(largest, float((gradient - expected).abs().max() / right[number].abs().max()))
    return largest
