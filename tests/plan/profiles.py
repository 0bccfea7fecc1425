"""Profiles made by hand, for the tests of plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rueda.records import Recipe
from rueda.records.profile import Communication, NoiseScale, Profile, StepTime

RECIPE = Recipe(batch=64, rate=0.05, epochs=5)


def step(batch: int, seconds: float, *, spread: float = 0.0, backward: float | None = None) -> StepTime:
    """A step of which a third is the forward pass and the rest, unless said, the backward pass."""
    back = 2 / 3 * seconds if backward is None else backward
    return StepTime(
        batch=batch, seconds=seconds, spread=spread, repeats=5, data=0.0, forward=seconds - back, backward=back,
        optimizer=0.0,
    )  # fmt: skip


def noise(value: float, *, at: int = 2000, epochs: float = 2.0) -> NoiseScale:
    return NoiseScale(
        value=value, low=value / 2, high=2 * value, variance=value, square=1.0, step=at, steps=100, epochs=epochs
    )


def line(workers: int, latency: float, bandwidth: float) -> Communication:
    return Communication(workers=workers, backend="gloo", points=(), latency=latency, bandwidth=bandwidth, residual=0.0)


def profile(steps: Sequence[StepTime], *, parameters: int = 1_000_000, **more: Any) -> Profile:
    values: dict[str, Any] = {
        "task": "glyphs-cnn", "device": "cpu", "threads": 1, "precision": "float32", "parameters": parameters,
        "gradient_bytes": 4 * parameters, "examples": 60_000, "recipe": RECIPE.to_toml(), "steps": tuple(steps),
    }  # fmt: skip
    return Profile(**{**values, **more})
