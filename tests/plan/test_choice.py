"""The planned recipe: each rule where it holds, and its reason beside it."""

from __future__ import annotations

from typing import Any

import pytest

from rueda.plan import choose_recipe
from rueda.records import Recipe
from rueda.records.plan import PlanNoise

BASE = Recipe(batch=64, rate=0.05, epochs=90)


def noise(value: float, first: float | None = None) -> PlanNoise:
    return PlanNoise(
        value=value, first=value if first is None else first, low=None, high=None, step=2000, epochs=20, source="halves"
    )


def choose(base: Recipe = BASE, workers: int = 8, batch: int = 64, **more: Any) -> Recipe:
    values: dict[str, Any] = {"noise": noise(1000), "examples": 60_000, **more}
    return choose_recipe(base, workers=workers, local_batch=batch, **values)


@pytest.mark.parametrize(
    ("base", "more", "optimizer", "scaling"),
    [
        (BASE, {}, "sgd", "linear"),
        (BASE, {"noise": None}, "larc", "linear"),
        (BASE, {"noise": noise(100)}, "larc", "linear"),
        (BASE, {"noise": noise(1000, first=20)}, "larc", "linear"),
        (BASE, {"noise": noise(1000, first=20), "batch_norm": True}, "sgd", "linear"),
        (BASE.change(model={"batch_norm": True}), {"noise": noise(1000, first=20)}, "sgd", "linear"),
        (BASE.change(optimizer="adam"), {}, "adam", "sqrt"),
        (BASE.change(optimizer="lamb"), {"noise": None}, "lamb", "sqrt"),
        (BASE.change(optimizer="larc"), {}, "larc", "linear"),
    ],
)
def test_optimizer_and_rule(base: Recipe, more: dict[str, Any], optimizer: str, scaling: str) -> None:
    chosen = choose(base, **more)
    assert (chosen.optimizer, chosen.scaling) == (optimizer, scaling)
    assert chosen.scale == 8 and chosen.rate == base.rate
    assert {"workers", "batch", "optimizer", "scaling", "rate", "warmup_epochs", "schedule"} <= set(chosen.reasons)


@pytest.mark.parametrize(("epochs", "warmup"), [(5, 0.278), (18, 1.0), (90, 5.0), (300, 5.0)])
def test_a_short_training_warms_up_shortly(epochs: int, warmup: float) -> None:
    chosen = choose(BASE.change(epochs=epochs))
    assert chosen.warmup_epochs == warmup
    assert chosen.schedule == "step" and chosen.milestones == (pytest.approx(0.8 * epochs),)


def test_what_one_worker_has_is_kept() -> None:
    base = BASE.change(schedule="cosine", warmup_epochs=7.0, weight_decay=5e-4, momentum=0.8)
    chosen = choose(base)
    assert (chosen.schedule, chosen.warmup_epochs, chosen.weight_decay, chosen.momentum) == ("cosine", 7.0, 5e-4, 0.8)
    one_cycle = choose(BASE.change(schedule="one-cycle"))
    assert one_cycle.schedule == "one-cycle" and one_cycle.warmup_epochs == 0


def test_the_same_global_batch_changes_nothing_but_the_workers() -> None:
    chosen = choose(workers=4, batch=16)
    assert chosen == BASE.change(workers=4, batch=16, base_batch=64)
    assert chosen.scale == 1.0
    assert choose(workers=1) == BASE


def test_ghost_batches_where_the_local_batch_grew() -> None:
    normal = BASE.change(model={"batch_norm": True})
    assert choose(normal, batch=256).ghost_batch == 64
    assert choose(normal).ghost_batch is None and choose(batch=256).ghost_batch is None


def test_reasons_survive_the_file() -> None:
    chosen = choose(noise=noise(100))
    again = Recipe.from_toml(chosen.to_toml())
    assert again == chosen and "above the noise scale 100" in again.reasons["optimizer"]
