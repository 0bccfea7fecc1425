"""The step of N workers, against arithmetic done by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from plan.profiles import line, noise, profile, step
from rueda.errors import ProfileError
from rueda.plan import Cluster, Link, predict, this_machine
from rueda.plan.compute import compute_time, launch_seconds, smallest_batch
from rueda.plan.noise import mean_noise_scale, noise_of, statistical_efficiency, updates_needed
from rueda.plan.prediction import INTERFERENCE
from rueda.records.profile import StepTime, Together

ALONE = [step(16, 0.010), step(64, 0.022), step(256, 0.070)]
BOX = Cluster(name="box", devices_per_node=8, jitter=0.0, inside=Link(latency=0.0, bandwidth=1e9), max_nodes=1)


@pytest.mark.parametrize(
    ("batch", "seconds"),
    [(16, 0.010), (64, 0.022), (40, 0.016), (160, 0.046), (512, 0.140), (8, 0.008), (1, 0.00625)],
)
def test_compute_is_a_line_between_points(batch: int, seconds: float) -> None:
    """Above the largest, images/s stay; below the smallest the first line goes on (0.25 ms an image)."""
    assert compute_time(profile(ALONE), batch).seconds == pytest.approx(seconds)


def test_below_the_smallest_time_falls_no_faster_than_the_batch() -> None:
    steep = profile([step(16, 0.010), step(32, 0.030)])
    assert compute_time(steep, 8).seconds == pytest.approx(0.005)


def test_beyond_the_profile_it_warns() -> None:
    assert compute_time(profile(ALONE), 64).warnings == ()
    (above,) = compute_time(profile(ALONE), 512).warnings
    (below,) = compute_time(profile(ALONE), 8).warnings
    assert "no profile above batch 256" in above and "no profile below batch 16" in below


def test_accumulation_repeats_all_but_the_optimizer() -> None:
    one = StepTime(batch=8, seconds=0.1, spread=0, repeats=1, data=0.01, forward=0.03, backward=0.04, optimizer=0.02)
    assert compute_time(profile([one]), 8, 3).seconds == pytest.approx(3 * 0.08 + 0.02)


def test_a_faster_device_waits_for_the_launches() -> None:
    """10 tensors: 0.15 + 10 x 0.06 = 0.75 ms at least, which a device of 40 times the speed needs for 96 examples."""
    small = profile(ALONE, tensors=10)
    assert launch_seconds(small) == pytest.approx(0.75e-3) and launch_seconds(profile(ALONE)) == pytest.approx(1.11e-3)
    by_batch = {batch: compute_time(small, batch, speed=40.0).seconds for batch in (2, 16, 64, 256, 1024)}
    assert list(by_batch.values()) == pytest.approx([0.75e-3, 0.75e-3, 0.75e-3, 0.070 / 40, 0.280 / 40])
    assert smallest_batch(small, 40.0) == 128 and smallest_batch(small, 1.0) == 1
    assert smallest_batch(replace(small, largest_batch=100), 40.0) == 64
    loud, bound = compute_time(small, 16, speed=40.0).warnings
    assert loud == "EXTRAPOLATED: times of cpu divided by 40; nothing was measured on the other device"
    assert bound.endswith("0.75 ms a step: a smaller one is no faster")
    (free,) = compute_time(small, 256, speed=40.0).warnings
    assert free.startswith("EXTRAPOLATED") and "launches" not in free
    assert compute_time(small, 64, speed=1.0).seconds == compute_time(small, 64).seconds
    # The parts keep their share of the step, and every local batch of an accumulation is launched.
    assert compute_time(small, 16, speed=40.0).backward == pytest.approx(2 / 3 * 0.75e-3)
    assert compute_time(small, 16, 3, speed=40.0).seconds == pytest.approx(3 * 0.75e-3)


def test_what_a_gpu_needed_for_its_launches_stays() -> None:
    """Measured on a GPU, 3 ms at batch 0: a device of twice the speed does not shorten them."""
    measured = profile([step(8, 0.0032), step(64, 0.0046), step(256, 0.0094)], device="NVIDIA A100", tensors=1000)
    assert launch_seconds(measured) == pytest.approx(3e-3)
    found = [compute_time(measured, batch, speed=2.0).seconds for batch in (8, 64, 256)]
    assert found == pytest.approx([3e-3, 3e-3, 4.7e-3])


def test_a_batch_that_does_not_fit() -> None:
    with pytest.raises(ProfileError, match=r"local batch: expected at most 100, .* got 128; accumulate batches of 100"):
        predict(profile(ALONE, largest_batch=100), BOX, workers=2, local_batch=128)


def test_one_worker_is_its_compute() -> None:
    one = predict(profile(ALONE), BOX, workers=1, local_batch=64)
    assert (one.step_seconds, one.sync_seconds, one.efficiency) == (0.022, 0.0, 1.0)
    assert one.images_per_second == pytest.approx(64 / 0.022)


def test_one_bucket_hides_nothing() -> None:
    two = predict(profile(ALONE), BOX, workers=2, local_batch=64)
    sync = 4e6 / 1e9  # 4 MB once round two workers
    assert two.sync_seconds == pytest.approx(sync)
    assert two.step_seconds == pytest.approx(0.022 + sync)
    assert two.efficiency == pytest.approx(0.022 / (0.022 + sync))


@pytest.mark.parametrize(("parameters", "exposed_share"), [(1_000_000, 1 / 4), (10_000_000, None)])
def test_four_buckets_behind_the_backward_pass(parameters: int, exposed_share: float | None) -> None:
    """A timeline, bucket by bucket: ready at each quarter of the backward pass, sent one after the other."""
    measured = profile(ALONE, parameters=parameters, buckets=4)
    two = predict(measured, BOX, workers=2, local_batch=64)
    backward, each = 2 / 3 * 0.022, parameters * 4 / 4 / 1e9
    end = 0.0
    for bucket in range(4):
        end = max(end, backward * (bucket + 1) / 4) + each
    exposed = end - backward
    if exposed_share is not None:
        assert exposed == pytest.approx(exposed_share * two.sync_seconds)
    assert two.exposed_seconds == pytest.approx(exposed + INTERFERENCE * (4 * each - exposed))


def test_compressed_gradients_take_as_much_less_time_as_they_have_less_bytes() -> None:
    whole, halves = (
        predict(profile(ALONE, compressed_bytes=sent), BOX, workers=2, local_batch=64) for sent in (None, 2_000_000)
    )
    assert halves.sync_seconds == pytest.approx(whole.sync_seconds / 2) and whole.sync_seconds > 0
    assert halves.compute_seconds == whole.compute_seconds


def test_the_slowest_of_many() -> None:
    """Two devices whose speeds differ by 10 %: on average the slower is 0.564 x 10 % late."""
    two = predict(profile(ALONE), replace(BOX, jitter=0.1), workers=2, local_batch=64)
    assert two.straggler_seconds == pytest.approx(0.022 * 0.1 * 0.5641896)


def test_a_faster_device_computes_less_and_waits_as_long() -> None:
    slow, fast = (predict(profile(ALONE), replace(BOX, speed=v), workers=2, local_batch=64) for v in (1.0, 10.0))
    assert fast.compute_seconds == pytest.approx(slow.compute_seconds / 10)
    assert fast.sync_seconds == slow.sync_seconds and fast.efficiency < slow.efficiency


def test_horovod_looks_every_cycle() -> None:
    plain, ticking = (predict(profile(ALONE), replace(BOX, cycle=c), workers=2, local_batch=64) for c in (0.0, 5e-3))
    assert ticking.step_seconds - plain.step_seconds == pytest.approx(2.5e-3)


def test_pollux_on_the_profiled_machine() -> None:
    measured = profile(ALONE, communication=(line(2, 1e-3, 1e9),), overlap=2.0, contention=1.5)
    two = predict(measured, this_machine(measured), workers=2, local_batch=64)
    compute, sync = 0.022 * 1.5, 1e-3 + 4e6 / 1e9
    assert two.step_seconds == pytest.approx((compute**2 + sync**2) ** 0.5)


def test_real_steps_of_as_many_workers_come_first() -> None:
    pair = Together(workers=2, threads=1, compute=(step(16, 0.02), step(64, 0.04)), exchange=0.03, overlap=1.0)
    measured = profile(ALONE, communication=(line(2, 1e-3, 1e9),), together=(pair,), overlap=5.0)
    two = predict(measured, this_machine(measured), workers=2, local_batch=40)
    assert two.step_seconds == pytest.approx(0.03 + 0.03)
    four = predict(measured, this_machine(measured), workers=4, local_batch=64)  # two on each core
    assert four.compute_seconds == pytest.approx(2 * 0.022 * 1.9090909, rel=1e-6)


def test_more_workers_may_be_slower() -> None:
    """4.2 M parameters at batch 64 over Gloo: 17 MB at 1 GB/s against a step of 23 ms that two workers slow by 45 %."""
    measured = profile([step(64, 0.023)], parameters=4_200_000, communication=(line(2, 0.75e-3, 1e9),), contention=1.45,
                       overlap=1.0)  # fmt: skip
    two = predict(measured, this_machine(measured), workers=2, local_batch=64)
    assert 0.85 <= 2 * two.efficiency <= 0.95


@pytest.mark.parametrize("workers", [0, -3])
def test_no_workers(workers: int) -> None:
    with pytest.raises(ProfileError, match=f"workers: expected 1 or more, got {workers}"):
        predict(profile(ALONE), BOX, workers=workers, local_batch=64)


def test_statistical_efficiency_is_the_hyperbola_of_mccandlish() -> None:
    """(S / Smin - 1) (E / Emin - 1) = 1 for every batch, and half of both at the noise scale."""
    phi, base, updates = 900.0, 64, 10_000.0
    smallest_updates, smallest_examples = updates / (1 + phi / base), updates * base / (1 + base / phi)
    for batch in (64, 512, 900, 9000):
        needed = updates_needed(batch, base, updates, phi)
        product = (needed / smallest_updates - 1) * (needed * batch / smallest_examples - 1)
        assert product == pytest.approx(1)
    assert updates_needed(900, base, updates, phi) == pytest.approx(2 * smallest_updates)
    assert statistical_efficiency(1000, 1000, 5.0) == 1.0


@pytest.mark.parametrize("values", [(86.0,), (50.0, 900.0), (86.0, 8844.0), (900.0, 50.0, 20.0, 4e5)])
def test_one_noise_scale_needs_as_many_updates_as_those_that_it_replaces(values: tuple[float, ...]) -> None:
    """Each part needs (1 + φ / B) / (1 + φ / B0) times its updates; the mean φ gives their sum at every batch."""
    base, updates = 32, 1000.0
    mean = mean_noise_scale(values, base)
    for batch in (32, 64, 512, 10_000):
        by_parts = sum(updates_needed(batch, base, updates, phi) for phi in values)
        assert updates_needed(batch, base, updates * len(values), mean) == pytest.approx(by_parts)
    assert min(values) <= mean <= max(values)


def test_all_noise_scales_count_and_an_infinite_one_is_bounded_by_the_others() -> None:
    endless = replace(noise(1.0, at=9000), value=math.inf, low=300.0, high=math.inf)
    group = replace(noise(7.0, at=8000), group="conv")
    two = noise_of(profile(ALONE, noise=(noise(50, at=10), noise(900, at=2000), group)), 64)
    assert two is not None and (two.first, two.step) == (50, 2000)
    assert two.value == pytest.approx(mean_noise_scale((50, 900), 64))
    assert two.low == pytest.approx(mean_noise_scale((25, 450), 64))
    assert two.high == pytest.approx(mean_noise_scale((100, 1800), 64))
    three = noise_of(profile(ALONE, noise=(noise(50, at=10), noise(900, at=2000), endless)), 64)
    assert three is not None and three.step == 9000
    assert three.value == pytest.approx(mean_noise_scale((50, 900, 1e12), 64), rel=1e-6)
    assert three.high == pytest.approx(mean_noise_scale((100, 1800, 1e12), 64), rel=1e-6)
    unbounded = noise_of(profile(ALONE, noise=(replace(noise(50), high=math.inf),)), 64)
    assert unbounded is not None and unbounded.high is None
    assert noise_of(profile(ALONE, noise=(endless,)), 64) is None
