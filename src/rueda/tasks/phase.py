"""Phases: several updates from one batch, each of different parameters, with an optimizer of its own.

A generative adversarial network updates its discriminator and then its generator; an actor-critic method its critic
and then its actor::

    task = rueda.Task(
        ...,
        phases=(
            Phase(name="critic", step=critic_step, parameters=lambda model: model.critic.parameters()),
            Phase(name="generator", step=generator_step, parameters=lambda model: model.generator.parameters(),
                  recipe={"rate": 1e-4}),
        ),
    )

Each update of the training runs all phases, in their order, on the same batch. In a phase only its own parameters
require a gradient; the others are constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from rueda.errors import TaskError
from rueda.tasks.step import Step

OPTIONS = ("optimizer", "rate", "momentum", "nesterov", "betas", "weight_decay", "trust", "clip", "momentum_correction")
"""settings of a recipe that a phase may change"""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One phase of a task's updates."""

    name: str
    step: Step
    """(model, batch) -> losses and weights (:mod:`rueda.tasks.step`)"""
    parameters: Callable[[Any], Iterable[nn.Parameter]]
    """model -> the parameters that this phase trains"""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """fields in which this phase differs from the recipe, such as ``optimizer`` or ``rate``; the schedule keeps the
    ratio of the two rates"""

    def __post_init__(self) -> None:
        for name in ("step", "parameters"):
            if not callable(getattr(self, name)):
                what = f"Phase.{name} of {self.name}"
                raise TaskError(what, expected="a function", got=getattr(self, name), do="pass the function itself")
        wrong = sorted(self.recipe.keys() - set(OPTIONS))
        if wrong:
            do = "set the others in the recipe, for all phases"
            what = f"the recipe of phase {self.name}"
            raise TaskError(what, expected=f"settings of {', '.join(OPTIONS)}", got=wrong[0], do=do)

    def trained(self, model: nn.Module) -> list[nn.Parameter]:
        """Return the parameters that this phase trains."""
        found = [one for one in self.parameters(model) if one.requires_grad]
        known = {id(one) for one in model.parameters()}
        if not found or any(id(one) not in known for one in found):
            expected = "parameters of the model that require a gradient"
            got = "none" if not found else "others"
            raise TaskError(f"phase {self.name}", expected=expected, got=got, do="return model.PART.parameters()")
        return found
