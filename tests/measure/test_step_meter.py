"""A user's own loop gives the same records as `rueda measure`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from harness import workers
from rueda.errors import ProfileError
from rueda.measure import StepMeter, measure_communication
from rueda.records import Recipe
from rueda.records.profile import Profile
from rueda.world import current
from tinytask import clouds, network


def run(meter: StepMeter, batch: int, num_steps: int) -> torch.nn.Module:
    data, model = clouds(batch, 0), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in meter([(data.inputs, data.targets)] * num_steps):
        with meter.stage("forward"):
            loss = F.cross_entropy(model(inputs), targets)
        with meter.stage("backward"):
            time.sleep(0.01)
            loss.backward()  # type: ignore[no-untyped-call]
        with meter.stage("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
    return model


def test_a_few_lines_make_a_profile(tmp_path: Path) -> None:
    meter = StepMeter(warmup=2)
    for batch in (8, 16):
        model = run(meter, batch, 5)
    profile = meter.profile(model, task="mine", examples=240, recipe=Recipe(batch=8))
    assert [(step.batch, step.repeats) for step in profile.steps] == [(8, 3), (16, 3)]
    for step in profile.steps:
        assert step.backward >= 0.01 and step.forward > 0 and step.optimizer > 0 and step.data > 0
        assert step.seconds >= step.backward
    assert profile.parameters == 8 * 16 + 16 + 16 * 3 + 3 and profile.gradient_bytes == 4 * profile.parameters
    assert profile.examples == 240 and profile.device.startswith("cpu (") and profile.buckets == 1
    assert profile.compressed_bytes is None and profile.all_reduce_bytes == profile.gradient_bytes
    halves = meter.profile(model, task="mine", examples=240, recipe=Recipe(batch=8, gradient_compression="bf16"))
    assert (halves.gradient_bytes, halves.all_reduce_bytes) == (profile.gradient_bytes, profile.gradient_bytes // 2)
    profile.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path) == profile


@workers(2)
def test_links_and_noise_of_several_workers() -> None:
    """The lines of docs/measure.md."""
    from rueda.optim.meters import ExchangeMeter
    from rueda.optim.noise_scale import Estimator

    world, meter = current(), StepMeter(warmup=1)
    ddp_model = world.wrap(network())
    assert isinstance(ddp_model, torch.nn.parallel.DistributedDataParallel)
    exchange, estimator = ExchangeMeter(ddp_model), Estimator()
    data = clouds(16, world.rank)
    for inputs, targets in meter([(data.inputs, data.targets)] * 4):
        F.cross_entropy(ddp_model(inputs), targets).backward()
        reading = exchange.read(len(targets))
        assert reading is not None
        assert estimator.observe(*reading.sums(), reading.num_parts, reading.examples_per_part)
    noise = estimator.estimate(step=4)
    link = measure_communication(world, sizes=(4, 4096, 65536), seconds=0.1)
    profile = meter.profile(ddp_model, task="mine", examples=240, noise=[noise], communication=[link])
    assert profile.noise == (noise,) and profile.communication == (link,) and noise.steps == 4


BATCHES = {
    "a tensor": (torch.zeros(6, 2), 6),
    "a pair": ((torch.zeros(5, 2), torch.zeros(5)), 5),
    "a mapping": ({"pixels": torch.zeros(7, 2), "label": torch.zeros(7)}, 7),
    "a list in a list": ([[torch.zeros(3)]], 3),
}


@pytest.mark.parametrize("name", BATCHES)
def test_the_batch_size_is_seen(name: str) -> None:
    item, size = BATCHES[name]
    meter = StepMeter(warmup=0)
    assert list(meter([item])) == [item]
    assert [step.batch for step in meter.steps()] == [size]


def test_or_told() -> None:
    meter = StepMeter(warmup=0)
    assert list(meter(["text"], batch=4)) == ["text"]
    assert meter.steps()[0].batch == 4


MISTAKES = {
    "no tensor": (lambda: list(StepMeter()(["text"])), "a batch: expected a tensor as its first value, got 'str'"),
    "no such stage": (lambda: StepMeter().stage("lunch").__enter__(), "stage: expected one of data, forward"),
    "too few steps": (
        lambda: StepMeter().profile(network(), task="mine", examples=1),
        "the meter: expected more than 3 steps of a batch size, got 0",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    wrong, message = MISTAKES[name]
    with pytest.raises(ProfileError) as caught:
        wrong()
    assert message in str(caught.value) and "\n" not in str(caught.value)
