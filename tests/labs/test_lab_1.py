"""What lab 1 shows is what the library computes: a change there changes the lab."""

from __future__ import annotations

from typing import Any

import pytest

from rueda.labs.answering import answer_of
from rueda.labs.lab_1 import batch_table, line, paths, stable_rate, surfaces, trends
from rueda.plan import prediction
from rueda.study import gradient_descent


@pytest.fixture(autouse=True)
def fresh() -> None:
    for function in (paths.descent, line.the_points, stable_rate.curvature, batch_table.all_batches):
        function.cache_clear()


def test_another_gradient_is_another_path(monkeypatch: pytest.MonkeyPatch) -> None:
    before = paths.descent(8).paths[0]
    right = gradient_descent.gradient
    monkeypatch.setattr(gradient_descent, "gradient", lambda x, error: [2 * one for one in right(x, error)])
    paths.descent.cache_clear()
    after = paths.descent(8).paths[0]
    assert after.w[1] == pytest.approx(2 * before.w[1])


def test_another_limit_is_another_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    found = stable_rate.stable_rate()
    assert answer_of("1.stable-rate").accepts(round(found, 3))
    monkeypatch.setattr(stable_rate, "largest_stable_rate", lambda largest: 3 / largest)
    assert stable_rate.stable_rate() == pytest.approx(1.5 * found)
    assert not answer_of("1.stable-rate").accepts(found)


def test_the_hessian_is_that_of_the_points() -> None:
    mean = line.the_points().moments()
    values = [one.value for one in stable_rate.curvature().eigenvalues]
    assert sum(values) == pytest.approx(2 * (mean["xx"] + 1), rel=1e-6)  # trace
    assert values[0] * values[1] == pytest.approx(4 * (mean["xx"] - mean["x"] ** 2), rel=1e-6)  # determinant


@pytest.mark.parametrize(("share", "word"), [(0.98, "converges"), (1.02, "diverges")])
def test_the_limit_is_where_descent_diverges(share: float, word: str) -> None:
    plot: Any = stable_rate.at_rate(share)[0]
    assert plot.title.endswith(word)


def test_the_best_line_is_the_end_of_the_path() -> None:
    w, b = line.the_points().best_line()
    row = paths.descent(100, 0.01).rows[0]
    assert (row.w, row.b) == (pytest.approx(w, abs=0.2), pytest.approx(b, abs=1.2))
    assert row.loss == pytest.approx(line.best_loss(), rel=0.01)


def test_the_machine_decides_the_best_batch() -> None:
    texts = [batch_table.time_if_parallel(at_once)[1] for at_once in (1, 16, 128)]
    best = [int(str(text.text).split("**")[1]) for text in texts]  # type: ignore[union-attr]
    assert best[0] <= 2 and best[1:] == [16, 100]
    assert answer_of("1.best-for-16").accepts(16.0)


def test_the_stored_surfaces_say_what_the_lab_says() -> None:
    found = surfaces.landscape()
    assert len(found.members) == 2 * len(surfaces.DEPTHS)
    edges = {one.name: one.surface.edge(one.surface.sheets[0].loss) for one in found.members if one.surface}
    for depth, factor in ((5, 2), (10, 2), (20, 100)):
        with_, without = (edges[f"{depth} layers, {word} skip connections"] for word in ("with", "without"))
        assert without > factor * with_
    assert not str(found.environment["commit"]).endswith("+")  # a clean commit


def test_the_efficiencies_that_the_course_states() -> None:
    one = trends.SPEEDS[1]
    found = [prediction.scaling_efficiency(speed, workers, one) for workers, speed in trends.SPEEDS.items()]
    assert [f"{value:.0%}" for value in found] == ["100%", "88%", "89%", "86%"]
