"""Make a profile in a user's own training loop, in a few lines.

::

    meter = StepMeter()
    for inputs, targets in meter(loader):
        with meter.stage("forward"):
            loss = F.cross_entropy(model(inputs), targets)
        with meter.stage("backward"):
            loss.backward()
        with meter.stage("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
    meter.profile(model, task="mine", examples=len(dataset)).save(Path("profile.json"))

``rueda plan profile.json`` reads it. Run the loop at two or more batch sizes with the same meter: a plan interpolates
between them. Measure with one worker; :func:`rueda.measure.measure_communication` measures the all-reduce of several.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

from rueda.data.nest import num_examples
from rueda.errors import DataError, ProfileError
from rueda.measure.clock import STAGES, StageClock
from rueda.measure.memory import device_bytes, largest_batch, peak_bytes, usable_bytes
from rueda.measure.steps import Block, summary
from rueda.measure.together import gradient_bytes, num_buckets
from rueda.records import Recipe
from rueda.records.environment import environment
from rueda.records.profile import Communication, NoiseScale, Profile, StepTime, StepWork
from rueda.terminal.numbers import things
from rueda.train.normalisation import has_batch_norm
from rueda.train.numerics import settled
from rueda.world.device import is_gpu, wait_for

Item = TypeVar("Item")


class StepMeter:
    """Times the steps of a training loop, separately for each batch size.

    Args:
        device: where the model computes; the meter synchronises with it at the end of each stage.
        warmup: the first steps of each batch size that do not count.

    >>> meter = StepMeter(warmup=1)
    >>> for batch in meter([torch.zeros(8, 2)] * 4):
    ...     with meter.stage("forward"):
    ...         _ = batch.sum()
    >>> [(step.batch, step.repeats, step.forward > 0) for step in meter.steps()]
    [(8, 3, True)]
    """

    def __init__(self, device: torch.device | str = "cpu", *, warmup: int = 3) -> None:
        self._clock = StageClock(torch.device(device))
        self._warmup = warmup
        self._blocks: dict[int, list[Block]] = {}
        self._peaks: dict[int, int | None] = {}

    def __call__(self, loader: Iterable[Item], *, batch: int | None = None) -> Iterator[Item]:
        """Iterate over the batches of a loader; a step lasts from one batch to the next.

        Args:
            loader: an iterable of batches.
            batch: examples in each batch; by default the length of the first tensor in it.
        """
        clock = self._clock
        items = iter(loader)
        while True:
            clock.reset()
            wait_for(clock.device)
            started = time.perf_counter()
            clock.begin()
            try:
                item = next(items)
            except StopIteration:
                return
            clock.mark("data")
            yield item
            wait_for(clock.device)
            size = batch or _count(item)
            self._blocks.setdefault(size, []).append(Block(time.perf_counter() - started, dict(clock.seconds)))
            self._peaks[size] = peak_bytes(clock.device)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage of the step: ``forward``, ``backward`` or ``optimizer``; a step may have several of each."""
        if name not in STAGES:
            raise ProfileError("stage", expected=f"one of {', '.join(STAGES)}", got=name, do="choose one")
        self._clock.begin()
        yield
        self._clock.mark(name)

    def steps(self) -> list[StepTime]:
        """Return a record for each batch size, without the warm-up steps."""
        return [
            summary(batch, blocks[self._warmup :], self._peaks[batch])
            for batch, blocks in sorted(self._blocks.items())
            if len(blocks) > self._warmup
        ]

    def profile(
        self,
        model: nn.Module,
        *,
        task: str,
        examples: int,
        recipe: Recipe | None = None,
        communication: Sequence[Communication] = (),
        noise: Sequence[NoiseScale] = (),
        work: StepWork | None = None,
    ) -> Profile:
        """Return a profile for ``rueda plan``.

        Args:
            model: the model, for its number of parameters and the bytes of its gradients.
            task: a name for the training.
            examples: the size of the training set.
            recipe: how the model is trained; by default a recipe with the largest measured batch.
            communication: results of :func:`rueda.measure.measure_communication`, if there were several workers.
            noise: gradient noise scales, if they were measured.
            work: the result of :func:`rueda.measure.count_work`, from which a plan predicts other devices.
        """
        steps = self.steps()
        if not steps:
            expected, do = f"more than {self._warmup} steps of a batch size", "run the loop longer"
            raise ProfileError("the meter", expected=expected, got=sum(map(len, self._blocks.values())), do=do)
        device = self._clock.device
        return describe(
            model, device, task=task, examples=examples, steps=steps,
            recipe=recipe or Recipe(batch=steps[-1].batch), largest=largest_batch(self._peaks, usable_bytes(device)),
            communication=tuple(communication), noise=tuple(noise), work=work,
        )  # fmt: skip


def describe(
    model: nn.Module,
    device: torch.device,
    *,
    task: str,
    examples: int,
    steps: Sequence[StepTime],
    recipe: Recipe,
    largest: int | None = None,
    layers_known: bool = True,
    **measured: Any,
) -> Profile:
    """Return a profile of the measured values, with a description of the model and the machine.

    ``layers_known`` is False for a model of which only the shapes of its parameters are given.
    """
    batch_norm = has_batch_norm(model) if layers_known else None
    num_bytes, threads, about = gradient_bytes(model), torch.get_num_threads(), environment()
    return Profile(
        task=task,
        device=_device_name(device, threads, about["machine"]["processor"]),
        threads=threads,
        precision=settled(recipe, device).precision,
        parameters=sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        tensors=sum(parameter.requires_grad for parameter in model.parameters()),
        gradient_bytes=num_bytes,
        batch_norm=batch_norm,
        examples=examples,
        recipe=recipe.to_toml(),
        steps=tuple(steps),
        largest_batch=largest,
        memory_bytes=device_bytes(device),
        buckets=num_buckets(num_bytes),
        environment=about,
        command=about["command"],
        **measured,
    )


def _count(item: object) -> int:
    """Return the number of examples in a batch: the length of its first tensor."""
    try:
        return num_examples(item)
    except DataError:
        raise ProfileError(
            "a batch", expected="a tensor as its first value", got=type(item).__name__, do="call meter(loader, batch=N)"
        ) from None


def _device_name(device: torch.device, threads: int, processor: str) -> str:
    if is_gpu(device):
        return str(torch.get_device_module(device).get_device_name(device))
    return f"cpu ({things(threads, 'thread')} of {processor})" if device.type == "cpu" else device.type
