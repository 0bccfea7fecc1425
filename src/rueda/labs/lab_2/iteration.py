"""The fifteen steps of a training iteration, timed one by one, on one worker and on two.

A network of three layers is trained on images that lie in a file. Between the backward pass and the update several
workers have one step more: the average of their gradients. Rueda and DDP overlap that with the backward pass; here it
is a step of its own, so that it can be seen.
"""

from __future__ import annotations

import os
import queue
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from rueda.measure.trace import StageSpan, StageTrace
from rueda.optim.schedules import Constant
from rueda.tasks.datasets import glyphs
from rueda.world import World

AVERAGE = "average the gradients"
STEPS: dict[str, str] = {
    "read": "The bytes of the images of one batch are read from storage.",
    "decode": "The bytes become an array in the memory of this computer.",
    "prepare": "The array is turned into what the network expects: numbers between 0 and 1. Augmentation belongs here.",
    "queue": "The batch waits in a queue until the training loop takes it; a loader fills the queue ahead of time.",
    "move to the device": "The batch is copied to the GPU. Here the device is the CPU, so there is nothing to copy.",
    "forward, layer 1": "The first layer computes its activations.",
    "forward, layer 2": "The second layer computes its activations from those of the first.",
    "forward, output": "The last layer computes one number for each class.",
    "loss": "The outputs are compared with the right answers.",
    "backward, output": "The gradient of the loss with respect to the weights of the last layer.",
    "backward, layer 2": "The gradient reaches the second layer.",
    "backward, layer 1": "The gradient reaches the first layer: now every weight has one.",
    "prepare the update": "The learning rate of this step is looked up, and the gradient is clipped if it is too long.",
    "update the weights": "The optimizer changes every weight.",
    "return control": "The gradients are cleared, and the loop may begin again.",
}
"""the fifteen steps by name, with what happens in each"""
AVERAGE_WHY = (
    "The workers exchange their gradients, and all get the mean. Nobody can go on before the slowest has come."
)


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """One measured iteration: the shortest of several, which other programs on the machine have disturbed least."""

    workers: int
    batch: int
    """images of each worker"""
    spans: tuple[tuple[StageSpan, ...], ...]
    """for each worker its steps, in seconds since the first of them began"""
    repeats: int

    @property
    def seconds(self) -> float:
        """From the begin of the first worker to the end of the last."""
        return max(span.end for spans in self.spans for span in spans)

    @property
    def images_per_second(self) -> float:
        """Images of all workers in a second."""
        return self.batch * self.workers / self.seconds


def explanation(step: str) -> str:
    """Return what happens in a step."""
    return AVERAGE_WHY if step == AVERAGE else STEPS[step]


def network(pixels: int = 784, width: int = 512) -> nn.ModuleList:
    """Return the three layers that are trained.

    >>> sum(parameter.numel() for parameter in network().parameters())
    669706
    """
    return nn.ModuleList([nn.Linear(pixels, width), nn.Linear(width, width), nn.Linear(width, 10)])


def measure_iteration(world: World, *, batch: int, repeats: int, width: int = 512) -> Iteration:
    """Time the steps of several iterations; every worker must call this, and every worker gets the result.

    Args:
        world: one worker or several.
        batch: images of each worker.
        repeats: iterations that are timed.
        width: neurons of the hidden layers.
    """
    with tempfile.TemporaryDirectory(prefix="rueda-lab-") as folder:
        iterate = _loop(world, Path(folder) / "images", batch, width)
        for _ in range(3):
            iterate()
        traces = []
        for _ in range(repeats):
            world.barrier()
            traces.append(world.all_gather_object(iterate()))
    return min((_iteration(one, batch, repeats) for one in traces), key=lambda run: run.seconds)


def _iteration(traces: Sequence[Sequence[StageSpan]], batch: int, repeats: int) -> Iteration:
    start = min(spans[0].begin for spans in traces)
    relative = tuple(tuple(span.since(start) for span in spans) for spans in traces)
    return Iteration(workers=len(traces), batch=batch, spans=relative, repeats=repeats)


def _loop(world: World, file: Path, batch: int, width: int) -> Callable[[], list[StageSpan]]:
    """Write the images to a file, build the network, and return a function that makes one iteration."""
    data = glyphs("train", num_examples=1024)
    shape, num_bytes = data.inputs.shape[1:], data.inputs[0].nbytes
    file.write_bytes(data.inputs.numpy().tobytes())
    torch.manual_seed(0)
    layers = network(int(np.prod(shape)), width).to(world.device)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.01, momentum=0.9)
    trace, schedule = StageTrace(world.device), Constant(0.01)
    names = ["backward, layer 1", "backward, layer 2", "backward, output"]
    for name, layer in zip(names, layers, strict=True):
        for parameter in layer.parameters():  # called as soon as the gradient of a parameter is there
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: trace.mark(name))  # type: ignore[no-untyped-call]
    ready: queue.SimpleQueue[Tensor] = queue.SimpleQueue()
    draw = np.random.default_rng(world.rank)
    descriptor = os.open(file, os.O_RDONLY)

    def iterate() -> list[StageSpan]:
        chosen = draw.integers(len(data.targets), size=batch)
        targets = data.targets[torch.from_numpy(chosen)].to(world.device)
        trace.begin()
        raw = b"".join(os.pread(descriptor, num_bytes, int(number) * num_bytes) for number in chosen)
        trace.mark("read")
        images = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(batch, *shape)
        trace.mark("decode")
        prepared = images.float().div_(255).flatten(1)
        trace.mark("prepare")
        ready.put(prepared)
        inputs = ready.get()
        trace.mark("queue")
        inputs = inputs.to(world.device)
        trace.mark("move to the device")
        hidden = torch.relu(layers[0](inputs))
        trace.mark("forward, layer 1")
        hidden = torch.relu(layers[1](hidden))
        trace.mark("forward, layer 2")
        outputs = layers[2](hidden)
        trace.mark("forward, output")
        loss = nn.functional.cross_entropy(outputs, targets)
        trace.mark("loss")
        loss.backward()  # type: ignore[no-untyped-call]
        if world.size > 1:
            for parameter in layers.parameters():
                world.all_reduce_(parameter.grad, "mean")  # type: ignore[arg-type]
            trace.mark(AVERAGE)
        for group in optimizer.param_groups:
            group["lr"] = schedule(0)
        nn.utils.clip_grad_norm_(layers.parameters(), 10.0)
        trace.mark("prepare the update")
        optimizer.step()
        trace.mark("update the weights")
        optimizer.zero_grad()
        trace.mark("return control")
        return trace.spans

    return iterate
