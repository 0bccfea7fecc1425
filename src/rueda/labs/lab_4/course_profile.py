"""The profile of the course's network on its GPU, from the throughput that its material prints.

A Wide ResNet for Fashion-MNIST with 17.1 million parameters, 40 epochs at batch 32 and rate 0.01. Its gradient noise
scale is not published: in the lab it is a slider.
"""

from __future__ import annotations

from rueda.labs.lab_3.throughput import GPU_IMAGES_PER_SECOND
from rueda.records.profile import NoiseScale, Profile, StepTime
from rueda.records.recipe.recipe import Recipe

PARAMETERS = 17_100_000
RECIPE = Recipe(batch=32, rate=0.01, momentum=0.9, epochs=40)
BUCKETS = 3
"""of 25 MB each, as torch's DistributedDataParallel makes them"""


def course_profile(noise_scale: float | None = None, epochs: int = RECIPE.epochs) -> Profile:
    """Return the profile, with a noise scale measured in the middle of the training, or with none.

    >>> profile = course_profile(noise_scale=2_000)
    >>> [(step.batch, round(step.images_per_second)) for step in profile.steps][:3], profile.noise[0].value
    ([(8, 322), (16, 485), (32, 575)], 2000)
    """
    recipe = RECIPE.change(epochs=epochs)
    return Profile(
        task="fashion-mnist-wrn", device="the course's GPU", threads=1, precision="float32", parameters=PARAMETERS,
        gradient_bytes=4 * PARAMETERS, examples=60_000, recipe=recipe.to_toml(), buckets=BUCKETS,
        steps=tuple(_step(batch, batch / speed) for batch, speed in GPU_IMAGES_PER_SECOND.items()),
        noise=() if noise_scale is None else (_noise(noise_scale, epochs / 2),),
    )  # fmt: skip


def _step(batch: int, seconds: float) -> StepTime:
    return StepTime(
        batch=batch, seconds=seconds, spread=0.0, repeats=1, data=0.0, forward=seconds / 3, backward=2 * seconds / 3,
        optimizer=0.0,
    )  # fmt: skip


def _noise(value: float, epochs: float) -> NoiseScale:
    return NoiseScale(
        value=value, low=value / 1.5, high=value * 1.5, variance=value, square=1.0, step=round(epochs * 1_875),
        steps=100, epochs=epochs, source="assumed",
    )  # fmt: skip
