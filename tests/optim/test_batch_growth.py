from __future__ import annotations

import itertools
import math

import pytest

from rueda.errors import RecipeError
from rueda.optim.batch_growth import BatchGrowth, from_noise_scale, num_updates, split_batch, stretch

SMITH = BatchGrowth(128, 5, (60, 120, 160))


def test_smith() -> None:
    """WRN-16-4 on CIFAR-10: 80k updates become 29k."""
    assert [SMITH(epoch) for epoch in (0, 59.9, 60, 120, 160, 199)] == [128, 128, 640, 3200, 16000, 16000]
    assert round(num_updates(128, 200, num_examples=50_000), -4) == 80_000
    assert round(num_updates(SMITH, 200, num_examples=50_000), -3) == 29_000
    by_hand = 60 * (50_000 // 128) + 60 * (50_000 // 640) + 40 * (50_000 // 3200) + 40 * (50_000 // 16000)
    assert num_updates(SMITH, 200, num_examples=50_000) == by_hand
    assert str(SMITH) == "batch 128 -> 640 -> 3200 -> 16000 at epochs 60, 120, 160"


def test_noise_falls_as_under_rate_decay() -> None:
    """rate / batch is the same whether the rate falls by 0.2 or the batch grows by 5."""
    for epoch in (0, 60, 120, 160):
        decayed_rate = 0.1 * 0.2 ** sum(epoch >= milestone for milestone in SMITH.milestones)
        assert 0.1 / SMITH(epoch) == pytest.approx(decayed_rate / 128)


@pytest.mark.parametrize(
    ("maximum", "batches", "factors"),
    [
        (None, (128, 640, 3200, 16000), (1, 1, 1, 1)),
        (16000, (128, 640, 3200, 16000), (1, 1, 1, 1)),
        (5000, (128, 640, 3200, 5000), (1, 1, 1, 5000 / 16000)),
        (1241, (128, 640, 1241, 1241), (1, 1, 1241 / 3200, 1241 / 16000)),  # 9.7 times the batch, 12.9 less rate
        (640, (128, 640, 640, 640), (1, 1, 0.2, 0.04)),
        (128, (128, 128, 128, 128), (1, 0.2, 0.04, 0.008)),  # all of it: the step decay that growth replaces
    ],
)
def test_what_the_batch_cannot_grow_the_rate_falls(
    maximum: int | None, batches: tuple[int, ...], factors: tuple[float, ...]
) -> None:
    """Over the whole run, rate / batch falls by 5 at each milestone: by 125 in all."""
    growth = BatchGrowth(128, 5, (60, 120, 160), maximum=maximum)
    epochs = (0, 60, 120, 160)
    assert tuple(growth(epoch) for epoch in epochs) == batches
    assert [growth.rate_factor(epoch) for epoch in epochs] == pytest.approx(factors, rel=1e-15)
    noise = [growth.rate_factor(epoch) / growth(epoch) * 128 for epoch in epochs]
    assert noise == pytest.approx([1, 1 / 5, 1 / 25, 1 / 125], rel=1e-15)
    if maximum == 640:
        assert str(growth).endswith("128 -> 640 -> 640 -> 640 at epochs 60, 120, 160, rate times 1 -> 1 -> 0.2 -> 0.04")


def test_a_factor_that_is_not_exact_leaves_the_rate_alone() -> None:
    growth = BatchGrowth(64, 64 ** (1 / 3), (1, 2, 3), maximum=4096)
    assert [growth(epoch) for epoch in range(4)] == [64, 256, 1024, 4096]
    assert [growth.rate_factor(epoch) for epoch in range(4)] == [1.0] * 4
    assert str(growth).endswith("4096 at epochs 1, 2, 3")


def test_a_batch_that_workers_share_unevenly_keeps_the_noise() -> None:
    """Growth by 1.7 on 3 workers: whatever batch is used, the rate makes up for it."""
    growth = BatchGrowth(96, 1.7, (1, 2, 3, 4), maximum=500)
    for epoch in range(5):
        local, passes = split_batch(growth(epoch), 3, 32)
        batch = 3 * local * passes
        assert growth.rate_factor(epoch, batch) / batch == pytest.approx(1 / 96 / 1.7**epoch, rel=1e-14)


def test_updates_fall_by_the_factor_at_each_milestone() -> None:
    growth = BatchGrowth(100, 2, (3, 6))
    per_epoch = [6000 // growth(epoch) for epoch in range(9)]
    assert per_epoch == [60] * 3 + [30] * 3 + [15] * 3


def test_growth_is_bounded_and_never_falls() -> None:
    growth = BatchGrowth(128, 1.7, (1, 2, 3, 4), maximum=500)
    sizes = [growth(epoch / 4) for epoch in range(24)]
    assert sizes == sorted(sizes) and sizes[-1] == 500


@pytest.mark.parametrize(
    ("noise", "current", "options", "batch"),
    [
        (1000.0, 256, {"largest_growth": 10}, 1000),
        (1000.0, 256, {"largest_growth": 10, "multiple": 64}, 960),
        (1000.0, 256, {}, 512),
        (10.0, 256, {}, 256),
        (1e6, 256, {"maximum": 300, "multiple": 64}, 256),
        (math.nan, 256, {}, 256),
        (math.inf, 256, {}, 256),
        (-3.0, 256, {}, 256),
    ],
)
def test_from_noise_scale(noise: float, current: int, options: dict[str, float], batch: int) -> None:
    assert from_noise_scale(noise, current_batch=current, **options) == batch  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("global_batch", "num_workers", "largest", "local", "passes"),
    [
        (640, 1, None, 640, 1),
        (640, 2, None, 320, 1),
        (3200, 2, 512, 400, 4),
        (16000, 2, 512, 500, 16),
        (16000, 8, 512, 500, 4),
        (14, 2, 3, 2, 3),  # 7 fall into no 3 to 6 equal passes: 12 examples
        (1000, 3, 128, 111, 3),
        (5, 5, 1, 1, 1),
    ],
)
def test_realise(global_batch: int, num_workers: int, largest: int | None, local: int, passes: int) -> None:
    assert split_batch(global_batch, num_workers, largest) == (local, passes)


def test_realise_is_bounded_by_memory_and_exact_where_it_divides() -> None:
    for batch, num_workers, largest in itertools.product((16, 60, 128, 640, 1000, 3200), (1, 2, 3, 8), (7, 32, 100)):
        local, passes = split_batch(batch, num_workers, largest)
        assert 1 <= local <= largest
        assert abs(local * passes * num_workers - batch) <= 0.2 * batch
        fewest = math.ceil(batch / num_workers / largest)
        if batch % (num_workers * fewest) == 0:
            assert local * passes * num_workers == batch


def test_every_example_is_used_once_whatever_the_number_of_workers() -> None:
    growth = BatchGrowth(64, 2, (1, 2))
    for num_workers, epoch in itertools.product((1, 2), range(3)):
        local, passes = split_batch(growth(epoch), num_workers, 32)
        assert local * passes * num_workers == growth(epoch)
        assert 1024 // growth(epoch) * local * passes * num_workers == 1024


@pytest.mark.parametrize("factor", [1, 2, 8, 32])
def test_stretching_keeps_the_updates(factor: int) -> None:
    epochs, milestones = stretch(90, (30, 60, 80), factor)
    num_examples = 64_000
    small = num_updates(100, 90, num_examples=num_examples)
    assert num_updates(100 * factor, epochs, num_examples=num_examples) == pytest.approx(small, rel=1e-9)
    for before, after in zip((30, 60, 80), milestones, strict=True):
        assert after / epochs == pytest.approx(before / 90)


def test_stretching_rounds_up() -> None:
    assert stretch(5, (), 1.5) == (8, ())
    assert stretch(3, (1.0,), 1 / 3) == (1, (1 / 3,))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 2, (1,)), "base_batch: expected a positive"),
        ((64, 0.5, (1,)), "growth factor: expected at least 1"),
        ((64, 2, (3, 1)), "milestones: expected rising"),
        ((64, 2, (1,), 32), "maximum: expected at least the base batch"),
    ],
)
def test_mistakes_are_told(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        BatchGrowth(*arguments)  # type: ignore[arg-type]


def test_impossible_batches_are_told() -> None:
    with pytest.raises(RecipeError, match="one example for each of 8 workers"):
        split_batch(4, 8)
    with pytest.raises(RecipeError, match="stretch: expected a factor > 0"):
        stretch(5, (), 0)
