"""The linear model's table against the published one, and against a line-by-line transcription."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rueda.errors import RecipeError
from rueda.records.descent import DescentRow, GradientDescent
from rueda.study.gradient_descent import descend, points, study_gradient_descent

# Over 200 seeds: batch -> epochs, updates, w, its spread, loss; None where nothing was published.
PUBLISHED: dict[int, tuple[float, float, float | None, float | None, float | None]] = {
    1: (5.6, 564, 10.08, 0.37, 101.2),
    8: (8.8, 114, 10.08, 0.20, 99.3),
    16: (13.3, 93, None, None, None),
    32: (20.5, 82, 10.05, 0.25, 100.4),
    64: (35.5, 71, None, None, None),
    100: (63.4, 63, 9.97, 0.18, 99.7),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, DescentRow], Path]:
    folder = tmp_path_factory.mktemp("gd")
    found = study_gradient_descent(batches=list(PUBLISHED), seeds=200, folder=folder)
    assert GradientDescent.load(folder) == found
    return {row.batch: row for row in found.rows}, folder


@pytest.mark.parametrize("batch", PUBLISHED)
def test_the_published_table_within_its_spread(table: tuple[dict[int, DescentRow], Path], batch: int) -> None:
    row = table[0][batch]
    epochs, updates, w, w_spread, loss = PUBLISHED[batch]
    assert abs(row.epochs - epochs) <= row.epochs_spread
    assert row.epochs == pytest.approx(epochs, rel=0.13)
    assert row.updates == pytest.approx(updates, rel=0.13)
    if w is not None and w_spread is not None and loss is not None:
        assert abs(row.w - w) <= w_spread / 2
        assert row.w_spread == pytest.approx(w_spread, rel=0.15)
        assert abs(row.loss - loss) <= 3 * row.loss_spread / 200**0.5  # both are means over draws of their own


def test_one_seed_against_a_transcription() -> None:
    """The definition, point by point, without vectors."""
    x, y = points(3)
    for seed, batch in ((0, 1), (1, 7), (2, 100)):
        w = b = 0.0
        previous, epochs, updates = float("inf"), 0, 0
        for _ in range(1000):
            losses = []
            for start in range(0, 100, batch):
                pairs = list(zip(x[seed, start : start + batch], y[seed, start : start + batch], strict=True))
                errors = [w * one + b - other for one, other in pairs]
                losses += [error**2 for error in errors]
                slope = sum(2 * error * one for error, (one, _) in zip(errors, pairs, strict=True)) / len(pairs)
                w, b = w - 1e-3 * slope, b - 1e-3 * sum(2 * error for error in errors) / len(pairs)
                updates += 1
            epochs += 1
            mean = sum(losses) / 100
            if abs(mean - previous) < 1e-3 * previous:
                break
            previous = mean
        found, path = descend(x[seed : seed + 1], y[seed : seed + 1], batch)
        assert (found.epochs, found.updates) == (epochs, updates)
        assert (found.w, found.b) == pytest.approx((w, b), rel=1e-9)
        assert (path.w[-1], path.b[-1]) == pytest.approx((w, b), rel=1e-9)
        assert len(path.w) == updates + 1 and path.loss[-1] == pytest.approx(found.loss)


def test_seeds_do_not_meet() -> None:
    x, y = points(5)
    alone = [descend(x[seed : seed + 1], y[seed : seed + 1], 8)[0] for seed in range(5)]
    together, _ = descend(x, y, 8)
    assert together.w == pytest.approx(np.mean([one.w for one in alone]))
    assert together.epochs_spread == pytest.approx(np.std([one.epochs for one in alone], ddof=1))


def test_the_file(table: tuple[dict[int, DescentRow], Path]) -> None:
    data = json.loads((table[1] / "gd.json").read_text())
    assert (data["format"], data["kind"], data["seeds"]) == (1, "gd", 200)
    assert [row["batch"] for row in data["rows"]] == list(PUBLISHED) == [path["batch"] for path in data["paths"]]
    assert data["paths"][0]["w"][0] == data["paths"][0]["b"][0] == 0.0
    assert len(data["data"]["x"]) == len(data["data"]["y"]) == 100


@pytest.mark.parametrize("changes", [{"seeds": 0}, {"batches": [0]}, {"batches": [101]}])
def test_mistakes(changes: dict[str, object]) -> None:
    with pytest.raises(RecipeError, match="expected"):
        study_gradient_descent(**changes)  # type: ignore[arg-type]
