from __future__ import annotations

import math

import pytest

from rueda.errors import RecipeError
from rueda.optim import scaling
from rueda.optim.rates import adapted, warmup_epochs
from rueda.records import Recipe
from rueda.records.recipe.rules import CHOICES

CASES = [
    # rule, scale, rate, warm-up
    ("none", 8, 1.0, 1.0),
    ("linear", 32, 32.0, 1.0),  # Goyal et al.: 0.1 at 256 becomes 3.2 at 8192
    ("linear", 0.5, 0.5, 1.0),
    ("sqrt", 16, 4.0, 1.0),
    ("legw", 16, 4.0, 16.0),
    ("legw", 1, 1.0, 1.0),
]


@pytest.mark.parametrize(("rule", "scale", "rate", "warmup"), CASES)
def test_rules(rule: str, scale: float, rate: float, warmup: float) -> None:
    assert scaling.rate_factor(rule, scale) == pytest.approx(rate)
    assert scaling.warmup_factor(rule, scale) == pytest.approx(warmup)


def test_every_rule_of_a_recipe_is_known_and_leaves_the_base_batch_alone() -> None:
    assert tuple(scaling.RULES) == CHOICES["scaling"]
    assert all(rule(1.0) == 1.0 for rule in scaling.RULES.values())


@pytest.mark.parametrize(("exponent", "rule"), [(0.0, scaling.none), (0.5, scaling.sqrt), (1.0, scaling.linear)])
def test_powers_contain_the_others(exponent: float, rule: scaling.Rule) -> None:
    assert [scaling.power(exponent)(s) for s in (0.3, 1, 7)] == pytest.approx([rule(s) for s in (0.3, 1, 7)])


def test_legw_with_as_many_updates_warms_up_for_the_same_number_of_updates() -> None:
    """Both make the warm-up longer, by the same factor and for the same reason: once is right."""
    recipe = Recipe(workers=8, batch=8, epochs=4, warmup_epochs=1, scaling="legw")
    kept = adapted(recipe.change(keep_updates=True))
    assert (kept.epochs, warmup_epochs(kept)) == (32, 8)  # 8 epochs of the large batch are one of the small
    linear = adapted(recipe.change(keep_updates=True, scaling="linear"))
    assert warmup_epochs(linear) == 8


def test_legw_warms_up_for_the_same_number_of_updates() -> None:
    base_epochs, base_updates_per_epoch = 0.5, 400
    for scale in (1, 4, 16):
        updates = base_epochs * scaling.warmup_factor("legw", scale) * base_updates_per_epoch / scale
        assert updates == pytest.approx(200)


@pytest.mark.parametrize("scale", [0, -1, math.nan, math.inf])
@pytest.mark.parametrize("rule", scaling.RULES)
def test_bad_scales_are_refused(rule: str, scale: float) -> None:
    with pytest.raises(RecipeError, match="scale: expected batch / base batch > 0"):
        scaling.rate_factor(rule, scale)


def test_unknown_rules_are_refused() -> None:
    with pytest.raises(RecipeError, match="scaling: expected one of none, linear, sqrt, legw, got 'cubic'"):
        scaling.rate_factor("cubic", 2)
