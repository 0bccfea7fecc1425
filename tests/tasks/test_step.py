"""What a step may return, and the mistakes, each of which is one clear line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import rueda
from anytask import Made, frozen, label, language, padded, sentence, task_of, two_inputs, two_keys, vector
from rueda.errors import DataError, RecipeError, RuedaError, TaskError, WorldError
from rueda.measure.noise import measure_noise
from rueda.measure.steps import Stepper, measure_steps
from rueda.tasks import Losses, Phase, Task
from rueda.tasks.step import as_losses
from rueda.world import World
from tinytask import run, training

ONES, WEIGHTS = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)


def test_what_a_step_may_return() -> None:
    assert as_losses(ONES, "t") == Losses(ONES)
    for found in (as_losses((ONES, WEIGHTS), "t"), as_losses(Losses(ONES, WEIGHTS), "t")):
        assert found.weights is not None and found.weights.dtype == ONES.dtype
        assert (float(found.total()), float(found.weight())) == (6.0, 6.0)
    assert as_losses((torch.tensor(2.0), torch.tensor(5)), "t").total() == 10.0  # a mean with its weight
    assert as_losses((ONES, None, "outputs"), "t").outputs == "outputs"


RETURNED: dict[str, tuple[Any, str]] = {
    "a mean": (torch.tensor(1.0), "the losses themselves.*got 'one number'; use reduction=\"none\""),
    "nothing": (None, "losses, or \\(losses, weights\\).*got 'NoneType'"),
    "a dict": ({"loss": ONES}, "got 'dict'"),
    "classes": (torch.ones(2, dtype=torch.int64), "floating-point type, got 'int64'"),
    "weights of another shape": ((ONES, torch.ones(2)), r"weights: expected a tensor of shape \[2, 3\], got \[2\]"),
    "a number as weights": ((ONES, 3), "got 'int'"),
}


@pytest.mark.parametrize("name", RETURNED)
def test_what_a_step_may_not_return(name: str) -> None:
    value, line = RETURNED[name]
    with pytest.raises(TaskError, match=f"the step of task t.*{line}"):
        as_losses(value, "t")


def trained(task: Task, **changes: Any) -> rueda.train.Result:
    return run(training(task, task.recipe.change(**changes), alone=True))


def phase(step: Any = lambda model, batch: None, **options: Any) -> Phase:
    return Phase(**{"name": "p", "step": step, "parameters": lambda model: model.parameters(), **options})


def detached(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["features"]), batch["label"], reduction="none").detach()


MISTAKES: dict[str, tuple[Callable[[], object], type[RuedaError], str]] = {
    "a dict of two keys without a step": (
        lambda: trained(replace(two_keys(), step=None, metric=None)),
        TaskError,
        r"\(inputs, targets\), since it has no step, got 'a dict of features, label'; give the task a step",
    ),
    "a dict of three keys without a step": (
        lambda: trained(task_of("t", lambda i: dict.fromkeys("abc", vector(i)), lambda: nn.Linear(6, 3))),
        TaskError,
        "a dict of a, b, c",
    ),
    "three values without a step": (
        lambda: trained(task_of("t", lambda i: (vector(i), label(i), label(i)), lambda: nn.Linear(6, 3))),
        TaskError,
        "got 'a list of 3'",
    ),
    "lengths that differ": (
        lambda: trained(task_of("t", lambda i: (sentence(i), label(i)), lambda: nn.Linear(6, 3))),
        DataError,
        "collating a batch: expected examples of one structure and shape.*give the task a collate",
    ),
    "losses without a gradient": (
        lambda: trained(replace(two_keys(), step=detached)),
        TaskError,
        "do not depend on any parameter that is trained; do not detach them",
    ),
    "a loss and a step": (
        lambda: replace(two_keys(), loss=F.mse_loss),
        TaskError,
        "give it a loss or a step, not both",
    ),
    "a step that is no function": (lambda: replace(two_keys(), step=1), TaskError, r"Task.step: expected a function"),
    "no optimizer": (
        lambda: trained(replace(frozen(), optimizer=lambda model, recipe: None)),
        TaskError,
        "Task.optimizer: expected a torch optimizer, got 'NoneType'",
    ),
    "an optimizer of some parameters": (
        lambda: trained(replace(frozen(), optimizer=lambda model, recipe: torch.optim.SGD(model[4].parameters()))),
        TaskError,
        "expected all parameters that require a gradient, got 'none for 2.weight and 1 more'",
    ),
    "gradient noise of losses that are no examples": (
        lambda: trained(
            replace(language(), step=lambda model, batch: model.head(model.encode(batch["tokens"])).flatten()),
            gradient_noise=1.0, base_batch=2,
        ),
        RecipeError,
        "gradient_noise: expected losses whose first dimension counts the 12 examples",
    ),
    "the noise scale of a batch that cannot be divided": (
        lambda: trained(
            task_of("t", vector, lambda: nn.Linear(6, 1), collate=lambda found: (torch.stack(found).flatten(), None),
                    step=lambda model, batch: model(batch[0].view(-1, 6))), noise_scale_every=1),
        RecipeError,
        "set accumulate to 2 or more",
    ),
    "a phase without parameters": (
        lambda: trained(replace(two_keys(), step=None, phases=(phase(parameters=lambda model: []),))),
        TaskError,
        "phase p: expected parameters of the model that require a gradient, got 'none'",
    ),
    "a phase with other settings": (lambda: phase(recipe={"batch": 3}), TaskError, "settings of.*got 'batch'"),
    "a phase that is none": (lambda: replace(two_keys(), phases=("critic",)), TaskError, "Task.phases.*got 'str'"),
    "adascale with phases": (
        lambda: trained(replace(two_keys(), phases=(phase(),)), adascale=True),
        RecipeError,
        "adascale follows one optimizer",
    ),
    "a model without parameters": (
        lambda: trained(replace(two_keys(), model=nn.Identity)),
        TaskError,
        "the model: expected parameters that require a gradient, got none",
    ),
    "a scalar to gather": (lambda: rueda.gather(torch.tensor(1.0)), WorldError, "a tensor with rows"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line(name: str) -> None:
    make, kind, line = MISTAKES[name]
    with pytest.raises(kind) as caught:
        make()
    assert "\n" not in str(caught.value)
    assert re.search(line, str(caught.value)), caught.value


def test_inputs_by_name_and_by_position() -> None:
    by_position = two_inputs()
    by_name = replace(by_position, train=Made(lambda i: ({"first": vector(i), "second": vector(i + 99, 4)}, label(i))))
    losses = [one.row.train_loss for one in (trained(by_position), trained(by_name)) if one.row is not None]
    assert losses[0] == losses[1]


def test_numbers_of_numpy_are_converted() -> None:
    task = task_of("t", lambda i: (vector(i).double().numpy(), label(i)), lambda: nn.Linear(6, 3))
    assert trained(task, precision="float32").status == "finished"


# Measuring.


def test_the_noise_scale_does_not_depend_on_the_scale_of_weights() -> None:
    def doubled(model: nn.Module, batch: dict[str, Tensor]) -> Losses:
        losses, weights = language().step(model, batch)  # type: ignore[misc]
        return Losses(losses, 2.0 * weights)

    found = []
    for task in (language(), replace(language(), step=doubled)):
        job = training(task, task.recipe.change(noise_scale_every=1), alone=True)
        readings = [job.step().reading for _ in range(4)]
        found.append([reading.norms for reading in readings if reading is not None])
    assert len(found[0]) == 4 and all(torch.allclose(*pair, rtol=1e-12) for pair in zip(*found, strict=True))


@pytest.mark.parametrize("make", [language, two_keys])
def test_a_task_with_a_step_is_measured(make: Callable[[], Task]) -> None:
    task = make()
    (noise,) = measure_noise(task, task.recipe, World(), seconds=60, intervals=1)
    assert noise.value > 0
    steps, _ = measure_steps(Stepper(task, task.recipe, World()), [4, 8], seconds=0.1, all_of_them=True)
    assert [step.batch for step in steps] == [4, 8] and all(step.forward > 0 and step.backward > 0 for step in steps)


def test_padding_is_that_of_the_examples() -> None:
    assert padded([torch.ones(2), torch.ones(3)])["mask"].sum() == 5
