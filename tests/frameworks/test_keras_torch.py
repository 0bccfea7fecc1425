"""``horovod.keras`` with Keras 3 on its torch backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from frameworks import keras_cases as cases
from harness import workers

FRAMEWORK = "keras-torch"


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "lamb"])
@workers(2, framework=FRAMEWORK)
def test_fit_equals_one_worker(name: str) -> None:
    cases.fit_equals_one_worker(name)


@workers(3, framework=FRAMEWORK)
def test_three_workers_in_float64() -> None:
    cases.fit_equals_one_worker("momentum")
    cases.updates_equal_one_worker_in_float64()


@workers(2, framework=FRAMEWORK)
def test_a_loop_equals_one_worker() -> None:
    cases.loop_equals_one_worker()


@workers(2, framework=FRAMEWORK)
def test_options_of_the_exchange() -> None:
    cases.options_of_the_exchange()
    cases.local_variables_keep_their_gradients()
    cases.process_sets_train_by_themselves()
    cases.uneven_batches_count_equally()
    cases.collectives_of_values()


@workers(2, framework=FRAMEWORK)
def test_class_and_configuration_are_kept() -> None:
    cases.class_and_configuration_are_kept()


@workers(2, framework=FRAMEWORK)
def test_accumulation_equals_the_accumulated_batch() -> None:
    cases.accumulation_equals_the_accumulated_batch()


@workers(2, framework=FRAMEWORK)
def test_overflow_on_one_rank_skips_the_step_on_all() -> None:
    cases.overflow_on_one_rank_skips_the_step_on_all()
    cases.overflow_on_one_rank_skips_the_step_on_all(passes=2)


@workers(3, framework=FRAMEWORK)
def test_callbacks_do_what_they_say() -> None:
    cases.callbacks_do_what_they_say()
    cases.elastic_state()


def test_saved_models_load(tmp_path: Path) -> None:
    saved_models_load(folder=str(tmp_path))


@workers(2, framework=FRAMEWORK)
def saved_models_load(folder: str) -> None:
    cases.saved_models_load(folder, (".keras",))


@workers(2, framework=FRAMEWORK)
def test_every_optimizer_is_wrapped() -> None:
    cases.every_optimizer_is_wrapped()
