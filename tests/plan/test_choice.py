"""The planned recipe: each rule where it holds, and its reason beside it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rueda.optim.batch_growth import BatchGrowth
from rueda.plan import choose_recipe
from rueda.records import Recipe
from rueda.records.plan import PlanNoise
from rueda.train.regime import batch_at

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
        (BASE, {"noise": noise(100), "batch_norm": True}, "sgd", "linear"),
        (BASE.change(model={"batch_norm": True}), {"noise": noise(1000, first=20)}, "sgd", "linear"),
        (BASE.change(optimizer="adam"), {}, "adam", "sqrt"),
        (BASE.change(optimizer="lamb"), {"noise": None}, "lamb", "sqrt"),
        (BASE.change(optimizer="larc"), {}, "larc", "linear"),
    ],
)
def test_optimizer_and_rule(base: Recipe, more: dict[str, Any], optimizer: str, scaling: str) -> None:
    chosen = choose(base, **more)
    assert (chosen.optimizer, chosen.scaling) == (optimizer, scaling) and chosen.scale == 8
    phi = more.get("noise", noise(1000))
    worth = 1.0 if phi is None else (phi.value + 64) / (phi.value + 512)
    assert chosen.rate == pytest.approx(base.rate * (worth if scaling == "linear" else worth**0.5), rel=1e-3)
    assert chosen.epochs == math.ceil(90 / worth - 0.1)
    assert {"workers", "batch", "optimizer", "scaling", "rate", "warmup_epochs", "schedule"} <= set(chosen.reasons)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_updates_times_rate_is_that_of_one_worker(optimizer: str) -> None:
    """SGD moves as far as one worker does: k e times the rate, k e times fewer updates; Adam sqrt(k e) times as far."""
    chosen = choose(BASE.change(optimizer=optimizer), batch_norm=True)
    gain = 8 * (1000 + 64) / (1000 + 512)
    factor = chosen.rate / BASE.rate * (8 if optimizer == "sgd" else 8**0.5)
    assert factor == pytest.approx(gain if optimizer == "sgd" else gain**0.5, rel=1e-3)
    fewer = 90 * (60_000 // 64) / (chosen.epochs * (60_000 // 512))
    assert fewer == pytest.approx(gain, rel=0.01)


@pytest.mark.parametrize(
    ("base", "betas"),
    [
        (BASE.change(optimizer="adam"), (0.9, 0.999)),
        (BASE.change(optimizer="adamw", betas=(0.95, 0.98)), (0.95, 0.98)),
        (BASE.change(optimizer="novograd", betas=(0.95, 0.98)), None),
        (BASE, None),
    ],
)
def test_adam_remembers_as_many_examples_as_one_worker(base: Recipe, betas: tuple[float, float] | None) -> None:
    """1 - beta is multiplied by the gain k e, by which the updates are divided."""
    chosen = choose(base)
    if betas is None:
        assert chosen.betas == base.betas
        return
    gain = 8 * (1000 + 64) / (1000 + 512)
    assert [1 - beta for beta in chosen.betas] == pytest.approx([gain * (1 - beta) for beta in betas], abs=1e-5)
    assert "equally fast in examples" in chosen.reasons["betas"]
    assert choose(base, workers=4, batch=16).betas == base.betas
    assert choose(base, workers=64, noise=None).betas[0] == 0.0  # no further than forgetting at once


@pytest.mark.parametrize(("epochs", "warmup"), [(5, 0.278), (18, 1.0), (90, 5.0), (300, 5.0)])
def test_a_short_training_warms_up_shortly(epochs: int, warmup: float) -> None:
    chosen = choose(BASE.change(epochs=epochs), noise=None)
    assert chosen.warmup_epochs == warmup
    assert chosen.schedule == "step" and chosen.milestones == (pytest.approx(0.8 * epochs),)


def test_what_one_worker_has_is_kept() -> None:
    base = BASE.change(schedule="cosine", warmup_epochs=7.0, weight_decay=5e-4, momentum=0.8)
    chosen = choose(base)
    assert (chosen.schedule, chosen.warmup_epochs, chosen.weight_decay, chosen.momentum) == ("cosine", 7.0, 5e-4, 0.8)
    one_cycle = choose(BASE.change(schedule="one-cycle"))
    assert one_cycle.schedule == "one-cycle" and one_cycle.warmup_epochs == 0


def test_the_same_global_batch_changes_nothing_but_the_workers_and_cools_down() -> None:
    chosen = choose(workers=4, batch=16)
    cooled = {"schedule": "step", "milestones": (72.0,), "decay": 0.1}
    assert chosen == BASE.change(workers=4, batch=16, base_batch=64, **cooled)
    assert chosen.scale == 1.0
    assert choose(workers=1) == BASE
    larger, many = (choose(workers=n, batch=512 // n, batch_norm=True, noise=noise(100)) for n in (1, 8))
    assert larger.global_batch == many.global_batch == 512 and larger.ghost_batch == 64
    for name in ("rate", "scale", "optimizer", "epochs", "warmup_epochs", "schedule", "milestones", "decay"):
        assert getattr(larger, name) == getattr(many, name), name


def test_ghost_batches_where_the_local_batch_grew() -> None:
    normal = BASE.change(model={"batch_norm": True})
    assert choose(normal, batch=256).ghost_batch == 64
    assert choose(normal).ghost_batch is None and choose(batch=256).ghost_batch is None


@pytest.mark.parametrize(
    ("base", "local", "sync", "ghost"),
    [
        (BASE, 64, False, None),
        (BASE, 63, True, None),
        (BASE, 16, True, None),
        (BASE, 8, True, None),
        (BASE.change(batch=8), 8, False, None),
        (BASE.change(ghost_batch=32), 64, False, 32),
        (BASE.change(ghost_batch=32), 32, False, 32),
        (BASE.change(ghost_batch=32), 16, True, None),
        (BASE.change(ghost_batch=32), 4, True, None),
        (BASE.change(noise_scale_every=10), 4, False, None),
    ],
)
def test_statistics_over_as_many_examples_as_one_worker_has(
    base: Recipe, local: int, sync: bool, ghost: int | None
) -> None:
    chosen = choose(base, workers=64, batch=local, batch_norm=True)
    assert (chosen.sync_batch_norm, chosen.ghost_batch, chosen.recalibrate) == (sync, ghost, "always")
    unsaid = choose(base, workers=64, batch=local, batch_norm=None)
    assert unsaid.recalibrate == ("auto" if base.ghost_batch is None else "always")


def test_a_growing_batch_replaces_the_cooldown() -> None:
    chosen = choose(workers=64, batch=1, growth=BatchGrowth(64, 4, (22, 45, 68)), batch_norm=True, noise=None)
    assert chosen.schedule == "constant" and chosen.growth_factor == 4.0 and chosen.milestones == (22.0, 45.0, 68.0)
    assert [batch_at(chosen, epoch, 60_000) for epoch in (0, 22, 68)] == [(1, 1), (4, 1), (64, 1)]
    assert "updates instead of 84,330" in chosen.reasons["epochs"] and chosen.sync_batch_norm


def test_milestones_of_one_worker_move_with_the_epochs() -> None:
    chosen = choose(BASE.change(schedule="step", milestones=(30.0, 60.0)))
    assert chosen.epochs == 128 and chosen.milestones == pytest.approx((30 * 128 / 90, 60 * 128 / 90), abs=1e-3)


def test_reasons_survive_the_file() -> None:
    chosen = choose(noise=noise(100))
    again = Recipe.from_toml(chosen.to_toml())
    assert again == chosen and "noise scale 100 at the start" in again.reasons["optimizer"]


@pytest.mark.parametrize(("final", "recalibrate"), [(64, "auto"), (512, "always")])
def test_statistics_are_recalibrated_if_the_largest_batch_exceeds_one_workers(final: int, recalibrate: str) -> None:
    """A batch that starts at one worker's and grows has few and long updates at its end."""
    growth = None if final == 64 else BatchGrowth(64, 2, (5, 10, 15))
    base = Recipe(batch=64, epochs=20)
    chosen = choose_recipe(
        base, workers=8, local_batch=8, noise=None, examples=60_000, batch_norm=True, growth=growth, growth_epochs=20
    )
    assert chosen.recalibrate == recalibrate and chosen.rate == base.rate and chosen.epochs == 20
