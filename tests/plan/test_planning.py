"""The plan: what is recommended and why, what it warns of, and what it says it does not know."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from plan.profiles import RECIPE, line, noise, profile, step
from rueda.errors import ProfileError
from rueda.optim.batch_growth import BatchGrowth
from rueda.plan import Cluster, Link, make_plan, this_machine
from rueda.records import Recipe
from rueda.records.plan import Plan
from rueda.records.profile import NoiseScale

FAST = Cluster(
    name="fast", devices_per_node=8, jitter=0.0, speed=1.0, price_per_hour=10.0,
    inside=Link(latency=0, bandwidth=1e12), between=Link(latency=0, bandwidth=1e12),
)  # fmt: skip
STEPS = [step(16, 0.020), step(64, 0.064), step(256, 0.220)]


def test_time_updates_and_money_by_hand() -> None:
    """With links as fast as that, N workers take 1 / (N x statistical efficiency) of the time."""
    plan = make_plan(profile(STEPS, noise=(noise(1000),)), FAST, workers=[1, 16], batch=64)
    one, many = plan.best()
    assert one.updates == 5 * (60_000 // 64)
    assert one.hours == pytest.approx(one.updates * 0.064 / 3600)
    worth = (1000 + 64) / (1000 + 1024)
    assert many.statistical_efficiency == pytest.approx(worth)
    assert many.epochs == math.ceil(5 / worth) == 10
    assert many.hours == pytest.approx(10 * (60_000 // 1024) * 0.064 / 3600, rel=1e-3)
    assert many.nodes == 2 and many.money == pytest.approx(many.hours * 2 * 10)
    assert many.goodput == pytest.approx(many.images_per_second * worth)


def test_weak_and_strong_scaling_are_both_there() -> None:
    plan = make_plan(profile(STEPS, noise=(noise(1000),)), FAST, workers=[4])
    found = {(row.workers, row.scaling): row for row in plan.rows if row.scaling != "other"}
    assert found[4, "weak"].local_batch == 64 and found[4, "weak"].global_batch == 256
    assert found[4, "strong"].local_batch == 16 and found[4, "strong"].global_batch == 64
    assert found[4, "strong"].statistical_efficiency == 1.0


@pytest.mark.parametrize(("phi", "workers"), [(100, 2), (1000, 16), (100_000, 64)])
def test_as_many_workers_as_still_give_half(phi: float, workers: int) -> None:
    """Past (φ + B0) x 2 examples each gives less than half: the rule of the plan, by its closed form."""
    free = replace(FAST, price_per_hour=None)
    plan = make_plan(profile(STEPS, noise=(noise(phi),)), free, workers=[1, 2, 4, 8, 16, 32, 64], batch=64, epochs=50)
    assert plan.chosen.workers == workers
    by_hand = max(n for n in (1, 2, 4, 8, 16, 32, 64) if (phi + 64) / (phi + 64 * n) >= 0.5)
    assert workers == by_hand


def test_nodes_are_paid_whole() -> None:
    """Eight devices of one node cost what one of them costs; a second node must halve the time, or nearly."""
    plan = make_plan(profile(STEPS, noise=(noise(300),)), FAST, workers=[1, 2, 4, 8, 16, 512], batch=64, epochs=50)
    assert plan.chosen.workers == 16  # 1.63 times the money of 8, for 1.23 times the progress
    hours = {row.workers: row.hours for row in plan.best()}
    assert hours[512] < hours[16] and 2 * hours[16] <= 2 * hours[8] < 64 * hours[512]


def test_the_batch_has_the_most_progress_a_second() -> None:
    plan = make_plan(profile(STEPS, noise=(noise(300),)), FAST, workers=[8])
    of_eight = [row for row in plan.rows if row.workers == 8]
    assert plan.chosen.goodput == max(row.goodput or 0 for row in of_eight)
    assert len(of_eight) >= 3


def test_batches_between_the_measured_ones_are_tried() -> None:
    """Where every step takes equally long, any number of workers can have the same global batch in the same time."""
    flat = [step(16, 0.020), step(1024, 0.020)]
    plan = make_plan(profile(flat, noise=(noise(2000, epochs=25.0),)), FAST, workers=[1, 2, 4, 8], epochs=50)
    assert {row.global_batch for row in plan.best()} == {1024}
    assert [row.local_batch for row in plan.best()] == [1024, 512, 256, 128]
    assert [point.hours for point in plan.curve[:4]] == pytest.approx([plan.curve[0].hours] * 4, rel=1e-3)
    only = make_plan(profile(flat, noise=(noise(2000, epochs=25.0),)), FAST, workers=[8], epochs=50)
    assert "8 workers are taken because the choice was among those asked for" in " ".join(only.advice)


@pytest.mark.parametrize(
    ("measured", "allowed", "because"),
    [
        ((noise(300),), 278, "contributes less than half"),
        ((replace(noise(300), low=100.0),), 228, "contributes less than half"),
        ((), 128, "is not known well enough"),
    ],
)
def test_a_batch_that_is_asked_for_may_exceed_what_the_rules_allow(
    measured: tuple[NoiseScale, ...], allowed: int, because: str
) -> None:
    for workers, is_told in ((allowed // 64, False), (allowed // 64 + 1, True)):
        plan = make_plan(profile(STEPS, noise=measured), FAST, workers=[workers], batch=64)
        found = [text for text in plan.warnings if f"larger than {allowed:,}, the largest that the rules allow" in text]
        assert len(found) == is_told and all(because in text for text in found)


def test_without_a_noise_scale_the_local_batch_does_not_grow() -> None:
    assert [make_plan(profile(STEPS), FAST, workers=[n]).chosen.local_batch for n in (1, 2)] == [64, 64]


@pytest.mark.parametrize("phi", [0.5, 20, 300, 1e6])
@pytest.mark.parametrize("epochs", [0.02, 2.0])
def test_the_batch_in_which_an_example_contributes_half(phi: float, epochs: float) -> None:
    """B <= φ + 2 B0 by the lower end of φ, here φ / 2; an early one is a lower bound: at most 8 times the batch."""
    steps = [step(size, 0.01) for size in (1, 64, 1024)]
    plan = make_plan(profile(steps, noise=(noise(phi, at=20, epochs=epochs),)), FAST, workers=[8])
    sizes = {row.global_batch for row in plan.rows if row.workers == 8 and row.updates >= 128}
    half = {size for size in sizes if size == 64 or (phi / 2 + 64) / (phi / 2 + size) >= 0.5}
    assert plan.chosen.global_batch == max(size for size in half if size <= 8 * 64 or epochs == 2.0)


def test_one_large_uncertain_noise_scale_does_not_make_a_large_batch() -> None:
    steps = [step(size, 0.01) for size in (1, 64, 1024)]
    jump = replace(noise(20_000, at=2000), low=120.0, high=math.inf)
    plans = [
        make_plan(profile(steps, noise=measured), FAST, workers=[8])
        for measured in ((noise(100, at=1000), noise(100, at=2000)), (noise(100, at=1000), jump))
    ]
    assert [plan.chosen.global_batch for plan in plans] == [128, 128]
    assert plans[1].noise is not None and plans[1].noise.value < 2 * 100 + 64


GROWING = profile(
    [step(size, 0.001 * size) for size in (1, 64, 256)], batch_norm=True, recipe=RECIPE.change(epochs=20).to_toml()
)

FLAT = replace(GROWING, steps=(step(1, 0.01), step(64, 0.01)), largest_batch=64)


def test_the_batch_grows_where_the_noise_scale_is_not_known() -> None:
    """64 workers: from twice one worker's batch to 8 times that, for SGD with batch norm; the time of all batches."""
    plan = make_plan(FLAT, FAST, workers=[64])
    row = plan.chosen
    assert (row.global_batch, row.growth_factor, row.growth_epochs, row.final_batch) == (128, 2, (10, 15), 512)
    by_hand = [60_000 // batch * epochs for batch, epochs in ((128, 10), (256, 5), (512, 5))]
    assert row.updates == sum(by_hand) and row.epochs == 20
    assert row.hours == pytest.approx(0.01 * sum(by_hand) / 3600, rel=0.01)
    assert any("nothing says that 8 times" in text for text in plan.warnings)
    assert ": 2 to 8 times the global batch of one worker" in " ".join(plan.advice)
    recipe = Recipe.from_toml(plan.recipe)
    assert (recipe.rate, recipe.scale, recipe.growth_factor, recipe.milestones) == (0.05, 2.0, 2.0, (10.0, 15.0))
    assert recipe.sync_batch_norm and recipe.recalibrate == "always"
    hours = [point.hours for point in plan.curve]
    assert all(more <= 1.01 * fewer for fewer, more in pairwise(hours))  # the curve falls, but for the exchange
    assert make_plan(replace(FLAT, batch_norm=False), FAST, workers=[64]).chosen.growth_factor is None
    adam = RECIPE.change(epochs=20, optimizer="adam", rate=0.001).to_toml()
    assert make_plan(replace(FLAT, recipe=adam), FAST, workers=[64]).chosen.growth_factor is None
    assert make_plan(replace(FLAT, examples=2400), FAST, workers=[64]).chosen.growth_factor is None
    small = make_plan(FLAT, FAST, workers=[4]).chosen  # up to 4 times the batch: less than growth is used for
    assert (small.global_batch, small.growth_factor) == (128, None)


@pytest.mark.parametrize("phi", [50, 200, 1000])
@pytest.mark.parametrize("price", [None, 10.0])
def test_knowing_the_noise_scale_better_does_not_change_the_training(phi: float, price: float | None) -> None:
    """The same noise scale, measured in the first half epoch or in four of 20."""
    cluster = replace(FAST, price_per_hour=price)
    early, late = (
        make_plan(replace(GROWING, noise=(noise(phi, epochs=epochs),)), cluster, workers=[64]).chosen
        for epochs in (0.5, 4.0)
    )
    assert (early.global_batch, early.final_batch, early.updates) == (late.global_batch, late.final_batch, late.updates)
    assert early.final_batch <= phi / 2 + 2 * 64


def test_a_noise_scale_that_grows_lets_the_batch_grow() -> None:
    """From one worker's batch to the lower end of the last noise scale, in as many epochs as the batches contribute."""
    measured = (noise(100, at=100, epochs=1.0), replace(noise(40_000, at=4000, epochs=4.0), low=20_000.0))
    plan = make_plan(replace(FLAT, noise=measured), FAST, workers=[64])
    row, found = plan.chosen, plan.noise
    assert found is not None and found.last_low == 20_000
    assert (row.global_batch, row.growth_factor, row.final_batch) == (64, 4, 4096)
    phis = [found.value if epoch < 4 else 20_000 for epoch in range(int(row.epochs))]
    growth = BatchGrowth(64, 4, row.growth_epochs)
    worth = sum((phi + 64) / (phi + growth(epoch)) for epoch, phi in enumerate(phis))
    assert 20 - 0.1 <= worth < 21 and row.epochs > 20
    assert Recipe.from_toml(plan.recipe).epochs == row.epochs
    assert "below and in the end above the critical batch size" in " ".join(plan.advice)
    constant = [one for one in plan.rows if one.workers == 64 and not one.best and one.global_batch <= 256]
    assert row.hours < min(one.hours for one in constant)
    lower = (measured[0], replace(measured[1], low=300.0))  # what bears no such growth
    assert make_plan(replace(FLAT, noise=lower), FAST, workers=[64]).chosen.final_batch <= 300 + 128


def test_it_warns_where_growth_passes_an_early_noise_scale() -> None:
    plans = []
    for first, last in ((0.1, 0.5), (1.0, 4.0)):
        measured = (noise(20, at=100, epochs=first), replace(noise(2000, at=400, epochs=last), low=1000.0))
        plans.append(make_plan(replace(FLAT, noise=measured), FAST, workers=[64]))
    early, late = plans
    assert early.chosen.final_batch == late.chosen.final_batch == 512
    assert early.noise is not None and early.noise.value < 512
    said = f"past the noise scale of {early.noise.value:,.0f}, which was measured in the first 0.5 of 20 epochs"
    assert any(said in text and "result may be worse" in text for text in early.warnings)
    assert not any("past the noise scale" in text for text in late.warnings)


@pytest.mark.parametrize(("phi", "useful"), [(128, 2), (1000, 8), (1e6, 128)])
def test_beyond_the_noise_scale_another_worker_is_wasted(phi: float, useful: int) -> None:
    """A step lasts equally long at any batch: only a larger batch saves time, and it ends at the noise scale."""
    steps = [step(size, 0.01) for size in (1, 64)]
    free = replace(FAST, price_per_hour=None)
    plan = make_plan(
        profile(steps, noise=(noise(phi, epochs=400),), largest_batch=64), free, workers=[1, 64], epochs=400
    )
    assert plan.useful_workers == useful
    assert [point.workers for point in plan.curve] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert ("another worker is wasted" in plan.advice[1]) == (useful < 128)


def test_workers_that_leave_too_few_updates_are_not_on_the_curve() -> None:
    """2,000 examples for 5 epochs: a batch of 64 makes 155 updates, one of 128 only 75."""
    steps = [step(size, 0.01) for size in (1, 64)]
    plan = make_plan(profile(steps, noise=(noise(1e6),), examples=2000), FAST, workers=[256])
    assert plan.curve[-1].workers == 64


@pytest.mark.parametrize(("workers", "local_batch"), [(2, 64), (8, 16), (16, 8), (64, 2), (128, 1), (512, 1)])
def test_without_a_noise_scale_the_global_batch_is_twice_one_workers_at_most(workers: int, local_batch: int) -> None:
    assert make_plan(profile(STEPS), FAST, workers=[workers]).chosen.local_batch == local_batch


@pytest.mark.parametrize("measured", [(noise(1e6),)])
def test_a_batch_that_leaves_too_few_updates_is_not_chosen(measured: tuple[object, ...]) -> None:
    """5 epochs of 60,000 in 128 updates or more: a global batch of at most 2,343, so 64 workers take 36 or less."""
    plan = make_plan(profile(STEPS, noise=measured), FAST, workers=[64])
    assert plan.chosen.local_batch == 32
    assert plan.warnings == (
        "145 updates are few: the result may be worse than that of one worker; rehearse the recipe.",
    )
    forced = make_plan(profile(STEPS, noise=measured), FAST, workers=[64], batch=64)
    assert any("5 epochs have only 70 updates" in text for text in forced.warnings)
    many = make_plan(profile(STEPS, noise=measured), FAST, workers=[1, 8, 4096])
    assert many.chosen.workers == 8


def test_one_number_is_the_plan_for_as_many() -> None:
    plan = make_plan(profile(STEPS, noise=(noise(10),)), FAST, workers=[64], batch=64)
    assert plan.chosen.workers == 64 and Recipe.from_toml(plan.recipe).workers == 64
    assert any(text.startswith("64 workers cost ") for text in plan.warnings)


def test_it_warns_where_more_workers_are_slower() -> None:
    measured = profile([step(64, 0.023)], parameters=4_200_000, communication=(line(2, 0.7e-3, 1e9),), contention=1.45,
                       overlap=1.0)  # fmt: skip
    plan = make_plan(measured, this_machine(measured), workers=[1, 2])
    assert plan.chosen.workers == 1
    (warning,) = plan.warnings
    assert warning.startswith("2 workers would be slower than one: 0.9") and "all-reduce 17.5 ms" in warning
    assert "to reach the result of 5 epochs at batch 64" in plan.advice[0] and "the same result" not in plan.advice[0]
    quick = replace(measured, communication=(line(2, 1e-5, 1e12),), contention=1.0)
    (warning,) = make_plan(quick, this_machine(quick), workers=[1, 2]).warnings
    assert "the noise scale is not known, so nothing says that 2 times" in warning


def test_each_row_of_the_table_is_warned_of_once() -> None:
    measured = profile([step(16, 0.006), step(64, 0.023)], parameters=4_200_000, communication=(line(2, 0.7e-3, 1e9),),
                       contention=1.45, overlap=1.0)  # fmt: skip
    plan = make_plan(measured, this_machine(measured), workers=[1, 2, 4])
    slower = [text for text in plan.warnings if "slower than one" in text]
    assert len(slower) == len({text.split()[0] for text in slower}) > 0
    assert all(f"local batch {row.local_batch:,} " in text for row, text in zip(plan.best()[1:], slower, strict=True))


UNKNOWN = {
    "no noise scale": (profile(STEPS), "gradient noise scale: hours assume"),
    "measured early": (profile(STEPS, noise=(noise(300, at=20, epochs=0.02),)), "measured after 20 updates"),
    "no larger batch": (profile(STEPS), "above local batch 256"),
    "memory": (profile(STEPS), "largest batch that fits"),
}


@pytest.mark.parametrize(("measured", "words"), UNKNOWN.values(), ids=UNKNOWN)
def test_it_says_what_it_does_not_know(measured: object, words: str) -> None:
    plan = make_plan(measured, FAST, workers=[1, 8])  # type: ignore[arg-type]
    assert any(words in text for text in plan.unknown)


def test_a_device_of_unknown_speed_and_no_price_are_said() -> None:
    plan = make_plan(profile(STEPS), replace(FAST, speed=None, price_per_hour=None, device="H100"), workers=[8])
    assert any("The speed of the H100" in text and "--speed" in text for text in plan.unknown)
    assert any("price" in text for text in plan.unknown)
    assert all(row.money is None for row in plan.rows)


def test_a_cluster_with_a_profile_of_its_own() -> None:
    """Times and the largest batch are its own; the training is the given profile's."""
    own = replace(FAST, profile=profile([step(16, 0.002), step(32, 0.003)], largest_batch=32))
    plan = make_plan(profile(STEPS, noise=(noise(300),)), own, workers=[1])
    assert {row.local_batch for row in plan.rows} <= {1, 2, 4, 8, 16, 32} and plan.noise is not None
    assert max(row.images_per_second for row in plan.rows) == pytest.approx(32 / 0.003)
    with pytest.raises(ProfileError, match="expected one of glyphs-cnn, got linear"):
        make_plan(profile(STEPS), replace(FAST, profile=profile(STEPS, task="linear")), workers=[1])


def test_a_plan_comes_back_from_its_file() -> None:
    plan = make_plan(profile(STEPS, noise=(noise(300),)), FAST, workers=[1, 8])
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"kind": "plan", "format": 9}', '{"kind": "plan", "format": 1}'])
def test_a_broken_plan_is_refused(text: str) -> None:
    with pytest.raises(ProfileError, match=r"^plan\.json: "):
        Plan.from_json(text)


@pytest.mark.parametrize("workers", [[], [0], [4, -1]])
def test_no_workers(workers: list[int]) -> None:
    with pytest.raises(ProfileError, match="workers: expected numbers of 1 or more"):
        make_plan(profile(STEPS), FAST, workers=workers)


def test_a_broken_recipe_in_the_profile() -> None:
    with pytest.raises(ProfileError, match=r"profile\.recipe: .*; measure again"):
        make_plan(profile(STEPS, recipe="batch = -1"), FAST, workers=[1])


def test_the_rate_belongs_to_the_base_batch() -> None:
    """A profile of a recipe for 8 workers: one worker is where the rate was chosen."""
    recipe = RECIPE.change(workers=8, batch=32, base_batch=64)
    plan = make_plan(profile(STEPS, recipe=recipe.to_toml()), FAST, workers=[1])
    assert plan.base_batch == 64
