"""A profile from one's own training loop, in a few lines.

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

``rueda plan profile.json`` takes it. Run the loop at two batch sizes or more, with the same meter: a plan interpolates
between them. Measure on one worker; what several cost each other is :func:`rueda.measure.measure_communication`'s to
find.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rueda.errors import ProfileError
from rueda.measure.clock import STAGES, StageClock, wait_for
from rueda.measure.memory import device_bytes, largest_batch, peak_bytes, usable_bytes
from rueda.measure.steps import Block, summary
from rueda.measure.together import num_buckets
from rueda.records import Recipe
from rueda.records.environment import environment
from rueda.records.profile import Communication, NoiseScale, Profile, StepTime

Item = TypeVar("Item")


class StepMeter:
    """Times the steps of a loop by their batch size.

    Args:
        device: where the model computes; its work is waited for at the end of each stage.
        warmup: steps of each batch size that do not count.

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
        """Give the loader's batches; from one to the next is a step.

        Args:
            loader: of batches.
            batch: examples in each, if they cannot be seen: by default the length of the first tensor in a batch.
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
            self._record(batch or _count(item), time.perf_counter() - started)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage of the step: ``forward``, ``backward`` or ``optimizer``; may come several times in a step."""
        if name not in STAGES:
            raise ProfileError("stage", expected=f"one of {', '.join(STAGES)}", got=name, do="choose one")
        self._clock.begin()
        yield
        self._clock.mark(name)

    def steps(self) -> list[StepTime]:
        """Give what was measured, a record for each batch size; warm-up is left out."""
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
    ) -> Profile:
        """Make the profile that ``rueda plan`` takes.

        Args:
            model: gives the parameters and the bytes of its gradients.
            task: what to call it.
            examples: in the training set.
            recipe: how it was trained; by default a recipe that says only the batch.
            communication: from :func:`rueda.measure.measure_communication`, where there were several workers.
            noise: gradient noise scales, where they were measured.
        """
        steps = self.steps()
        if not steps:
            raise ProfileError(
                "the meter",
                expected=f"more than {self._warmup} steps of a batch size",
                got=sum(map(len, self._blocks.values())),
                do="run the loop longer",
            )
        device = self._clock.device
        return describe(
            model, device, task=task, examples=examples, steps=steps,
            recipe=recipe or Recipe(batch=steps[-1].batch), largest=largest_batch(steps, usable_bytes(device)),
            communication=tuple(communication), noise=tuple(noise),
        )  # fmt: skip

    def _record(self, batch: int, seconds: float) -> None:
        self._blocks.setdefault(batch, []).append(Block(seconds, dict(self._clock.seconds)))
        self._peaks[batch] = peak_bytes(self._clock.device)


def describe(
    model: nn.Module,
    device: torch.device,
    *,
    task: str,
    examples: int,
    steps: Sequence[StepTime],
    recipe: Recipe,
    largest: int | None = None,
    **measured: Any,
) -> Profile:
    """Put what was measured beside what the model and the machine are."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradient_bytes = sum(parameter.numel() * parameter.element_size() for parameter in trainable)
    about = environment()
    threads = torch.get_num_threads()
    name = f"cpu ({threads} thread{'s' * (threads > 1)} of {about['machine']['processor']})"
    return Profile(
        task=task,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else name if device.type == "cpu" else "mps",
        threads=threads,
        precision=recipe.precision,
        parameters=sum(parameter.numel() for parameter in trainable),
        gradient_bytes=gradient_bytes,
        examples=examples,
        recipe=recipe.to_toml(),
        steps=tuple(steps),
        largest_batch=largest,
        memory_bytes=device_bytes(device),
        buckets=num_buckets(gradient_bytes),
        environment=about,
        command=about["command"],
        **measured,
    )


def _count(item: object) -> int:
    """Find the examples in a batch: the length of its first tensor."""
    if isinstance(item, Tensor):
        return int(item.shape[0])
    values = list(item.values()) if isinstance(item, dict) else item
    if isinstance(values, (list, tuple)) and values:
        return _count(values[0])
    raise ProfileError(
        "a batch", expected="a tensor first in it", got=type(item).__name__, do="say meter(loader, batch=N)"
    )
