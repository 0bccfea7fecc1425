"""Recipes: there and back, by text and by file, and every contradiction refused with what to change."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from rueda.errors import RecipeError
from rueda.records import Recipe
from rueda.records.recipe.default_rates import DEFAULT_RATES
from rueda.records.recipe.named import NAMED, named_recipe
from rueda.records.recipe.recipe import describe_fields, field_names
from rueda.train.regime import batch_at, growth_rate_factor


def test_round_trip_with_reasons(tmp_path: Path) -> None:
    recipe = Recipe(
        workers=8, batch=128, rate=0.1, milestones=(2.0, 4.0), schedule="step", betas=(0.9, 0.999), clip=1.0,
        model={"batch_norm": True, "width": 2}, reasons={"batch": "noise scale 980 at step 2,000"},
    )  # fmt: skip
    recipe.save(tmp_path / "recipe.toml")
    assert "batch = 128 # noise scale 980 at step 2,000" in (tmp_path / "recipe.toml").read_text()
    again = Recipe.load(tmp_path / "recipe.toml")
    assert again == recipe and again.reasons == recipe.reasons
    assert Recipe.from_toml(Recipe().to_toml()) == Recipe()
    assert again.change(batch=64).reasons == {}  # the reason went with the value


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("workers", [1, 8, 64])
def test_named_recipes_are_valid_for_any_number_of_workers(name: str, workers: int) -> None:
    for base in (Recipe(), Recipe(epochs=1, batch=8), Recipe(optimizer="adam", rate=1e-3, epochs=12, batch=512)):
        recipe = named_recipe(name, base, workers)
        assert Recipe.from_toml(recipe.to_toml()) == recipe
        if name not in ("batch-growth", "batch-ramp-up"):  # which start at one worker's batch, shared by all
            assert recipe.batch == base.batch


@pytest.mark.parametrize("name", ["batch-growth", "batch-ramp-up"])
@pytest.mark.parametrize(("batch", "workers"), [(64, 8), (16, 64), (8, 64), (1, 8), (50, 12), (16, 1)])
def test_growth_ends_at_the_batch_of_all_workers_with_the_whole_rate(name: str, batch: int, workers: int) -> None:
    """Also where one worker's batch has fewer examples than there are workers, so that it starts above that batch."""
    recipe = named_recipe(name, Recipe(batch=batch, epochs=6), workers)
    split = batch_at(recipe, 5, 10**6)
    final = workers * split.local_batch * split.accumulation
    assert final == workers * batch
    assert growth_rate_factor(recipe, 5, final) == pytest.approx(1)


SETTINGS = [
    ("batch=512", "batch", 512), ("rate=1e-3", "rate", 0.001), ("nesterov=true", "nesterov", True),
    ("clip=none", "clip", None), ("clip=2", "clip", 2.0), ("optimizer=lamb", "optimizer", "lamb"),
    ("betas=0.9,0.99", "betas", (0.9, 0.99)), ("model.batch_norm=true", "model", {"batch_norm": True}),
    ("model.width=4", "model", {"width": 4}), ("seed = 7", "seed", 7), ("scaling=none", "scaling", "none"),
    ("milestones=3.2", "milestones", (3.2,)), ("milestones=[3.2]", "milestones", (3.2,)), ("betas=[]", "betas", ()),
    ("milestones = [1, 2.5]", "milestones", (1.0, 2.5)), ('optimizer="lamb"', "optimizer", "lamb"),
    ("schedule='cosine'", "schedule", "cosine"), ("rate=.5", "rate", 0.5), ("batch=1_024", "batch", 1024),
    ("model={width=2, batch_norm=true}", "model", {"width": 2, "batch_norm": True}),
    ("model.name='a b'", "model", {"name": "a b"}), ("seed=9007199254740993", "seed", 2**53 + 1),
    ("batch=1e3", "batch", 1000), ("model.name='1'", "model", {"name": "1"}),
    ('model={name="1"}', "model", {"name": "1"}),
]  # fmt: skip


@pytest.mark.parametrize(("setting", "name", "value"), SETTINGS)
def test_settings(setting: str, name: str, value: object) -> None:
    found = getattr(Recipe().with_settings([setting]), name)
    assert found == value and type(found) is type(value)


BAD = {
    "batch=0": "batch: expected a positive number, got 0",
    "batch=2.5": "batch: expected a whole number, got '2.5'",
    "batch=many": "batch: expected a whole number",
    "btach=3": "did you mean batch?",
    "batch": "--set: expected name=value",
    "optimizer=sdg": "optimizer: expected one of sgd, adam",
    "nesterov=maybe": "nesterov: expected true or false",
    "warmup_epochs=9": "warmup_epochs = 9 is longer than the training of 5 epochs; lower it",
    "ghost_batch=65": "ghost_batch = 65 is larger than the local batch = 64",
    "schedule=step": "needs milestones",
    "growth_factor=2": "needs milestones",
    "momentum=1": "less than 1",
    "target_accuracy=85": "is not a fraction",
    "rate=-1": "rate: expected a positive number",
    "rate=nan": "rate: expected a positive number",
    "rate=inf": "rate: expected a positive number",
    "weight_decay=inf": "weight_decay: expected 0 or more",
    "milestones=4,2": "must rise",
    "milestones=[4, 2]": "must rise",
    "milestones=[4,": "--set milestones=[4,: expected a value as in a recipe file",
    "milestones=['x']": "milestones: expected a number, got 'x'",
    "batch=[8]": "batch: expected a whole number, got [8]",
    'optimizer="sgd': "expected a value as in a recipe file",
}


def test_a_file_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("batch = 3\n", encoding="utf-8-sig")
    assert Recipe.load(tmp_path / "recipe.toml").batch == 3


@pytest.mark.parametrize(("setting", "message"), BAD.items())
def test_bad_settings(setting: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe().with_settings([setting])
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ghost_batch": 8, "sync_batch_norm": True}, "keep one"),
        ({"growth_factor": 2.0, "milestones": (2.0,), "schedule": "step"}, "set schedule = 'constant'"),
        ({"optimizer": "adam", "nesterov": True}, "nesterov = false"),
        ({"adascale": True, "batch": 32, "base_batch": 16}, "of batch 32, so base_batch = 16 has no effect"),
        ({"adascale": True, "scaling": "linear"}, "scaling = 'none'"),
        ({"adascale": True, "workers": 4, "keep_updates": True}, "keep_updates would make them 4 times as many"),
        ({"schedule": "one-cycle", "warmup_epochs": 1.0}, "warmup_epochs = 0"),
        ({"reasons": {"bacth": "typo"}}, "reasons"),
        (
            {"micro_batches": 8},
            "^micro_batches = 8 is for pipelines, and parallel = 'data' has none; leave it out, or set parallel = "
            "'pipeline'$",
        ),
        ({"pipeline_schedule": "gpipe"}, "pipeline_schedule = 'gpipe' is for pipelines, and parallel = 'data' has"),
        ({"parallel": "data 2 x tensor 2", "micro_batches": 8}, "parallel = 'data 2 x tensor 2' has none"),
    ],
)
def test_contradictions(changes: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe().change(**changes)


def test_fields_of_pipelines_leave_with_the_pipeline() -> None:
    piped = Recipe(parallel="data 2 x pipeline 2", micro_batches=8, pipeline_schedule="gpipe")
    assert Recipe.from_toml(piped.to_toml()) == piped
    assert piped.with_settings(["parallel=sharded"]) == Recipe(parallel="sharded")
    assert piped.with_settings(["parallel=pipeline"]).micro_batches == 8
    assert Recipe.from_toml(Recipe().to_toml(), base=piped) == Recipe()  # written out whole, with defaults
    assert Recipe.from_toml('parallel = "sharded"\npipeline_schedule = "1f1b"').parallel == "sharded"
    with pytest.raises(RecipeError, match="micro_batches = 4 is for pipelines"):
        piped.with_settings(["parallel=data", "micro_batches=4"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch = ", "expected TOML"),
        ("batch = 'x'", "batch: expected a whole number, got 'x'"),
        ("model = 3", "model: expected a table"),
        ("milestones = 3", "milestones: expected a list"),
        ("workers = 8\nbatsh = 2", "did you mean batch?"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(RecipeError) as caught:
        Recipe.load(file)
    assert message in str(caught.value) and str(file) in str(caught.value)
    with pytest.raises(RecipeError, match="a recipe file"):
        Recipe.load(tmp_path / "absent.toml")


def test_every_field_is_described() -> None:
    described = describe_fields()
    assert [name for name, _, _ in described] == field_names()
    assert all(len(meaning) > 3 for _, _, meaning in described)


TUNED = Recipe(rate=0.2, optimizer="sgd", reasons={"batch": "noise scale 980"})


@pytest.mark.parametrize("optimizer", DEFAULT_RATES)
def test_another_optimizer_brings_its_rate(optimizer: str) -> None:
    """By --set, by an overlaid recipe and by a named one; a rate that is given stays."""
    rate = 0.2 if optimizer == "sgd" else DEFAULT_RATES[optimizer]["rate"]
    typed = TUNED.with_settings([f"optimizer={optimizer}"])
    written = Recipe.from_toml(f"optimizer = {optimizer!r}", base=TUNED)
    assert typed.rate == written.rate == TUNED.with_values({"optimizer": optimizer}).rate == rate
    assert typed == written and typed.reasons == written.reasons and typed.reasons["batch"] == "noise scale 980"
    note = f"optimizer {optimizer}: learning rate {rate:g} instead of 0.2, which was tuned for sgd; choose with --set "
    assert typed.rate_note == (None if optimizer == "sgd" else note + "rate=...")
    assert Recipe.from_toml(typed.to_toml()).rate_note == typed.rate_note  # it is recorded
    if optimizer in NAMED:
        assert named_recipe(optimizer, TUNED, 8).rate == rate
        assert named_recipe(optimizer, typed.change(rate=0.3), 8).rate == 0.3  # tuned for this optimizer already
    for given in (TUNED.with_settings([f"optimizer={optimizer}", "rate=0.3"]), typed.with_settings(["rate=0.3"])):
        assert given.rate == 0.3 and given.rate_note is None
    assert TUNED.change(optimizer=optimizer).rate == 0.2  # a program that changes one field changes one field


def test_lars_brings_its_trust() -> None:
    assert TUNED.overlay(optimizer="lars").trust == 0.02
    assert TUNED.overlay(optimizer="lars", trust=0.001).trust == 0.001
    assert TUNED.overlay(optimizer="lars", rate=8.0).trust is None
    assert TUNED.overlay(optimizer="lars").overlay(optimizer="larc").trust is None  # larc has another default


def test_a_default_rate_that_is_no_change_needs_no_note() -> None:
    assert TUNED.overlay(optimizer="adam").overlay(optimizer="adamw").rate_note is None


MISTAKEN = {
    "learning_rate": ({"learning_rate": 0.1}, "got 'learning_rate'; did you mean rate?"),
    "lr": ({"lr": 0.1}, "did you mean rate?"),
    "batch_size": ({"batch_size": 32}, "did you mean batch?"),
    "a misspelling": ({"epohcs": 2}, "did you mean epochs?"),
    "a text": ({"workers": "2"}, "workers: expected a positive number, got '2'"),
    "nothing": ({"momentum": None}, "momentum: expected 0 or more, got None"),
}


@pytest.mark.parametrize(("values", "message"), MISTAKEN.values(), ids=MISTAKEN)
def test_mistakes_in_python(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(message)):
        Recipe(**values)


def test_a_recipe_can_be_copied_and_pickled() -> None:
    recipe = Recipe(rate=0.1, model={"width": 3})
    assert pickle.loads(pickle.dumps(recipe)) == copy.deepcopy(recipe) == recipe
