"""Base class of optimizers that wrap another one and change only its ``step``.

A wrapper is itself an ``Optimizer``, so that torch's schedulers accept it. It stores no groups, state or defaults of
its own: they are always read from the inner optimizer, since loading a state replaces them there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from rueda.errors import RecipeError


class Wrapper(Optimizer):
    """The base class of LARC and AdaScale."""

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise RecipeError(
                type(self).__name__,
                expected="a torch optimizer to wrap",
                got=type(optimizer).__name__,
                do="make one first, such as torch.optim.SGD(model.parameters(), lr=0.1)",
            )
        self.optimizer = optimizer
        Optimizer.__setstate__(self, {})  # sets the hooks that torch and its schedulers expect, but no groups

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The inner optimizer's groups."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The inner optimizer's state."""
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The inner optimizer's defaults."""
        return self.optimizer.defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the inner optimizer."""
        self.optimizer.add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of all parameters."""
        self.optimizer.zero_grad(set_to_none)

    def step_with(self, option: str, change: Callable[[Any], Any]) -> None:
        """Step the inner optimizer with an option changed in every group that has it, then restore the option."""
        own = [(group, group[option]) for group in self.param_groups if group.get(option) is not None]
        try:
            for group, value in own:
                group[option] = change(value)
            self.optimizer.step()
        finally:
            for group, value in own:
                group[option] = value

    def raise_late(self) -> None:
        """Raise the error of the inner optimizer's last step, if it reports errors one step late."""
        raise_late(self.optimizer)

    def state_dict(self) -> dict[str, Any]:
        """Return the inner optimizer's state."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the inner optimizer's state."""
        self.optimizer.load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        own = {key: value for key, value in self.__dict__.items() if not key.startswith("_optimizer_")}
        own.pop("step", None)  # a scheduler replaces it on the instance
        return own

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.optimizer!r})"


def raise_late(optimizer: Optimizer) -> None:
    """Raise the error of an optimizer's last step, if it reports errors one step late; every rank must call it."""
    if hasattr(optimizer, "raise_late"):
        optimizer.raise_late()
