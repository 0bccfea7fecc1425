"""Schedules for other people's loops: torch's schedulers, Keras, and the momentum when the rate changes."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rueda.errors import MissingExtra, RecipeError
from rueda.optim.schedules import Schedule

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR


def torch_scheduler(optimizer: Optimizer, schedule: Schedule, *, last_step: int = -1) -> LambdaLR:
    """Make a scheduler of torch: call its `step()` after each `optimizer.step()`.

    The first parameter group follows the schedule; the others keep their ratio to it.

    Args:
        optimizer: its groups' `lr` only give the ratios.
        schedule: from step to rate.
        last_step: the last step made, to go on from there.

    >>> import torch
    >>> from rueda.optim.schedules import GradualWarmup
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> torch_scheduler(optimizer, GradualWarmup(0.2, 0.8, 10)).get_last_lr()
    [0.2]
    """
    from torch.optim.lr_scheduler import LambdaLR

    first = optimizer.param_groups[0]
    reference = float(first.get("initial_lr", first["lr"]))
    if not reference > 0:
        raise RecipeError("torch_scheduler", expected="lr > 0 in the first group", got=reference, do="set lr to 1")

    return LambdaLR(optimizer, lambda step: schedule(step) / reference, last_step)


def keras_epochs(schedule: Schedule, steps_per_epoch: int) -> Callable[..., float]:
    """Make the function that `keras.callbacks.LearningRateScheduler` takes: from epoch to rate.

    >>> from rueda.optim.schedules import GradualWarmup
    >>> function = keras_epochs(GradualWarmup(0.1, 0.8, 300), steps_per_epoch=100)
    >>> [round(function(epoch, None), 4) for epoch in range(4)]
    [0.1, 0.3333, 0.5667, 0.8]
    """

    def rate(epoch: int, current_rate: float | None = None) -> float:
        return schedule(epoch * steps_per_epoch)

    return rate


def keras_schedule(schedule: Schedule, num_steps: int) -> Any:
    """Make a `keras.optimizers.schedules.LearningRateSchedule` that changes the rate every step.

    The values are laid into a table, so that it runs inside the compiled step of every Keras backend.

    Args:
        schedule: from step to rate.
        num_steps: steps of the training; later ones keep the last value.
    """
    try:
        keras: Any = import_module("keras")
    except ImportError:
        raise MissingExtra("keras", "keras") from None
    table = schedule.values(num_steps)

    class Table(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
        def __call__(self, step: Any) -> Any:
            index = keras.ops.clip(keras.ops.cast(step, "int32"), 0, len(table) - 1)
            return keras.ops.take(keras.ops.convert_to_tensor(table, dtype="float32"), index)

        def get_config(self) -> dict[str, Any]:
            return {"table": table, "description": repr(schedule)}

    return Table()


def correct_momentum(
    optimizer: Optimizer, old_rate: float, new_rate: float, *, buffer: str = "momentum_buffer"
) -> None:
    """Multiply the momentum by new_rate / old_rate: Goyal et al. 2017, section 3, for buffers that hold the rate.

    SGD with momentum is written in two forms, equal as long as the rate stays:

        (a)  v <- m v + g          w <- w - rate v      torch.optim.SGD, and LARC round it
        (b)  u <- m u + rate g     w <- w - u           the LARS paper, Caffe

    with u = rate v. When the rate changes from r to r', form (a) moves by r' (m v + g): the whole momentum is rescaled
    at once. Form (b) moves by m r v + r' g: its momentum still has the old rate, which is too little in a warm-up and
    too much after a decay. Multiplying u by r'/r before the step gives m r' v + r' g: form (a).

    So: call this before the first step at the new rate if the buffer holds the rate (form b). For torch's SGD it
    is not needed; `keep_velocity` does the opposite there. A state without momentum is left alone, and so is
    one made at rate 0, which holds nothing to rescale.

    Args:
        optimizer: its state is changed in place.
        old_rate, new_rate: of the last step and of the next.
        buffer: the name of the momentum in the optimizer's state.
    """
    if old_rate != 0 and new_rate != old_rate:
        _scale_buffers(optimizer, new_rate / old_rate, buffer)


def keep_velocity(optimizer: Optimizer, old_rate: float, new_rate: float, *, buffer: str = "momentum_buffer") -> None:
    """Let an optimizer of form (a), such as torch's SGD, move as form (b) without correction.

    With v' = v r/r', form (a) moves by r' (m v' + g) = m r v + r' g: the momentum keeps its length across a change of
    rate. Call it before the first step at the new rate; see `correct_momentum` for the two forms.
    """
    if not new_rate > 0:
        raise RecipeError("keep_velocity", expected="a new rate > 0", got=new_rate, do="stop training instead")
    if old_rate != new_rate:
        _scale_buffers(optimizer, old_rate / new_rate, buffer)


def _scale_buffers(optimizer: Optimizer, factor: float, buffer: str) -> None:
    import torch

    found = [state[buffer] for state in optimizer.state.values() if state.get(buffer) is not None]
    if found:
        torch._foreach_mul_(found, factor)
