"""A profile survives its file, and a broken one is refused in one line."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rueda.errors import ProfileError
from rueda.records.profile import AllReduceTime, Communication, NoiseScale, Profile, StepTime, Together, overlapped


def step(batch: int) -> StepTime:
    return StepTime(
        batch=batch, seconds=1e-3 * batch, spread=1e-5, repeats=9, data=1e-4, forward=4e-4 * batch,
        backward=5e-4 * batch, optimizer=1e-4, peak_memory_bytes=10**8 + batch,
    )  # fmt: skip


NOISE = NoiseScale(value=980.0, low=700.0, high=math.inf, variance=3.0, square=0.003, step=200, steps=100, epochs=1.5)
PROFILE = Profile(
    task="glyphs-cnn", device="cpu (2 threads of something)", threads=2, precision="float32", parameters=1000,
    gradient_bytes=4000, examples=8192, recipe="batch = 64\n", steps=(step(8), step(16)), largest_batch=4096,
    memory_bytes=2**34, overlap=1.2, contention=1.6, noise=(NOISE,), buckets=2, environment={"machine": {"cores": 2}},
    communication=(
        Communication(
            workers=2, backend="gloo", points=(AllReduceTime(bytes=4, seconds=1e-4),), latency=1e-4, bandwidth=1e9,
            residual=0.1,
        ),
    ),
    together=(Together(workers=2, threads=1, compute=(step(8),), joined=(step(8),), exchange=0.01, overlap=1.2),),
)  # fmt: skip


def test_round_trip(tmp_path: Path) -> None:
    PROFILE.save(tmp_path / "profile.json")
    for path in (tmp_path, tmp_path / "profile.json", str(tmp_path)):
        loaded = Profile.load(path)
        assert math.isnan(loaded.noise[0].high)  # JSON has no infinity
        assert replace(loaded, noise=()) == replace(PROFILE, noise=())
    json.loads(PROFILE.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_a_later_version_may_say_more() -> None:
    data = {**json.loads(PROFILE.to_json()), "mood": "good"}
    assert Profile.from_json(json.dumps(data)).task == "glyphs-cnn"


def broken(**changes: Any) -> str:
    return json.dumps({**json.loads(PROFILE.to_json()), **changes})


def changed(where: str, **changes: Any) -> str:
    data = json.loads(PROFILE.to_json())
    data[where][0].update(changes)
    return json.dumps(data)


BROKEN = {
    "torn": (PROFILE.to_json()[:200], "expected JSON, got: "),
    "empty": ("", "expected JSON"),
    "a list": ("[]", "expected a profile, got 'list'"),
    "a recipe": ('{"batch": 64}', "expected format 1, got None"),
    "without steps": ('{"format": 1, "task": "t"}', "steps, which are missing"),
    "of the future": (broken(format=99), "expected format 1, got 99"),
    "no steps": (broken(steps=[]), "expected at least one measured batch"),
    "steps of text": (broken(steps="many"), "profile.steps: expected a list, got 'many'"),
    "a step that is no object": (broken(steps=[7]), "profile.steps[0]: expected an object, got 7"),
    "a batch of text": (changed("steps", batch="8"), "profile.steps[0].batch: expected int, got '8'"),
    "a batch that is true": (changed("steps", batch=True), "profile.steps[0].batch: expected int, got True"),
    "no time": (
        changed("steps", seconds=0),
        "profile.steps[0].seconds: expected a number, more than 0 (from 1e-12 to 1e18), got 0",
    ),
    "a time that was not finite": (
        changed("steps", seconds=None),
        "steps[0].seconds: expected a number, more than 0 (from 1e-12 to 1e18), got None",
    ),
    "a batch of 0": (changed("steps", batch=0), "profile.steps[0].batch: expected a number, more than 0, got 0"),
    "no parameters": (broken(parameters=0), "profile.parameters: expected a number, more than 0, got 0"),
    "no threads": (broken(threads=0), "profile.threads: expected a number, more than 0, got 0"),
    "a task of 5": (broken(task=5), "profile.task: expected str, got 5"),
    "a link to nobody": (changed("communication", workers=1), "communication[0].workers: expected 2 or more, got 1"),
    "a link without bandwidth": (
        changed("communication", bandwidth=0),
        "bandwidth: expected a number, more than 0 (from 1e-12 to 1e18), got 0",
    ),
    "a message of nothing": (
        changed("communication", points=[{"bytes": 0, "seconds": 1e-4}]),
        "points[0].bytes: expected a number, more than 0",
    ),
    "a number beyond all machines": (broken(gradient_bytes=10**400), "gradient_bytes: expected int, got 1000000"),
    "a float beyond all machines": (changed("steps", data=10**400), "steps[0].data: expected float, got 1000000"),
    "together alone": (changed("together", workers=1), "profile.together[0].workers: expected 2 or more, got 1"),
    "more than no overlap": (
        changed("together", overlap=0.5),
        "profile.together[0].overlap: expected 1 or more, got 0.5",
    ),
    "together without time": (
        changed("together", joined=[{**json.loads(PROFILE.to_json())["steps"][0], "seconds": -1}]),
        "together[0].joined[0].seconds: expected a number, more than 0 (from 1e-12 to 1e18), got -1",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_profile(name: str, tmp_path: Path) -> None:
    text, message = BROKEN[name]
    file = tmp_path / "profile.json"
    file.write_text(text)
    with pytest.raises(ProfileError) as caught:
        Profile.load(file)
    assert message in str(caught.value) and str(file) in str(caught.value)
    assert "\n" not in str(caught.value) and "rueda" in str(caught.value).lower()


def test_a_missing_field_is_named() -> None:
    data = json.loads(PROFILE.to_json())
    del data["device"]
    with pytest.raises(ProfileError, match="device"):
        Profile.from_json(json.dumps(data))


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.write_bytes(b"\xff\xfe\x00"), lambda p: p.mkdir()])
def test_a_file_that_cannot_be_read(make: Any, tmp_path: Path) -> None:
    make(tmp_path / "p.json")
    with pytest.raises(ProfileError, match=r"expected a profile, got: .*; make one with `rueda measure`"):
        Profile.load(tmp_path / "p.json")


@pytest.mark.parametrize(
    ("compute", "overlap", "expected"), [(0.03, 1.0, 0.07), (0.03, 2.0, 0.05), (0.04, 10.0, 0.0429)]
)
def test_a_joined_step(compute: float, overlap: float, expected: float) -> None:
    pair = Together(workers=2, threads=1, compute=(), exchange=0.04, overlap=overlap)
    assert pair.joined_seconds(compute) == pytest.approx(expected, rel=1e-3)


def test_contention_is_the_median_over_common_batches() -> None:
    alone = [replace(step(batch), seconds=float(batch)) for batch in (8, 16, 32, 64)]
    slower = {8: 1.1, 16: 1.2, 32: 1.9, 128: 9.0}
    compute = tuple(replace(step(batch), seconds=factor * batch) for batch, factor in slower.items())
    pair = Together(workers=2, threads=1, compute=compute)
    assert pair.contention(alone) == pytest.approx(1.2) and pair.contention(alone[3:]) is None
    assert pair.contention([]) is None


@pytest.mark.parametrize("gamma", [1.0, 1.3, 2.0, 10.0, 300.0])
def test_overlapped_against_the_formula_in_float64(gamma: float) -> None:
    compute, exchange = 0.03, 0.04
    log = max(gamma * math.log(compute), gamma * math.log(exchange))  # logarithms: 0.03^300 underflows
    total = math.exp(gamma * math.log(compute) - log) + math.exp(gamma * math.log(exchange) - log)
    assert overlapped(compute, exchange, gamma) == pytest.approx(math.exp((log + math.log(total)) / gamma))
    assert overlapped(0.03, 0.0, gamma) == pytest.approx(0.03) and overlapped(0.0, 0.0, gamma) == 0.0
