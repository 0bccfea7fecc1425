"""The time and price, on a cluster, of the training that a target error needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plan.profiles import profile, step
from rueda.labs import stored
from rueda.plan import load_cluster, predict
from rueda.plan.data_needed import extrapolate
from rueda.plan.on_cluster import time_on_cluster
from rueda.records.forecast import Forecast
from rueda.records.profile import StepWork

MEASURED = profile([step(32, 0.05), step(64, 0.09)])
BOX = replace(load_cluster("dgx-h100"), speed=2.0)


def test_hours_are_examples_by_throughput_and_nodes_are_paid_for() -> None:
    found = extrapolate(stored.load(Forecast, "forecast-fashion-mnist"), 0.1)
    assert found.need is not None
    answer = time_on_cluster(found, MEASURED, BOX, workers=16, local_batch=32).cluster
    assert answer is not None and answer.cost is not None and answer.hours.high is not None
    speed = predict(MEASURED, BOX, workers=16, local_batch=32).images_per_second
    assert answer.hours.value == pytest.approx(found.need.processed / speed / 3600)
    assert answer.hours.low < answer.hours.value < answer.hours.high
    assert answer.cost == pytest.approx(2 * (BOX.price_per_hour or 0) * answer.hours.value)  # two nodes


def test_what_it_assumes_is_noted() -> None:
    whole = stored.load(Forecast, "forecast-fashion-mnist")
    noted = time_on_cluster(extrapolate(whole, 0.1), MEASURED, replace(BOX, speed=None), workers=8, local_batch=32)
    assert [word in " ".join(noted.notes) for word in ("glyphs-cnn", "taken as the same", "a global batch of 256")] == [
        True, True, True,
    ]  # fmt: skip
    counted = replace(MEASURED, work=StepWork(flops=1e9, saved_bytes=1e6, update_bytes=0))
    found = time_on_cluster(extrapolate(whole, 0.1), counted, replace(BOX, speed=None), workers=8, local_batch=32)
    assert "those of its roofline" in " ".join(found.notes) and "taken as the same" not in " ".join(found.notes)
    refused = time_on_cluster(extrapolate(whole, 0.001), MEASURED, BOX, workers=8, local_batch=32)
    assert refused.cluster is None and refused.refusals
