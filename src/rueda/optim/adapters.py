"""Use a schedule as a torch scheduler, and correct the momentum when the learning rate changes.

`rueda.keras` has the same for Keras.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rueda.errors import RecipeError
from rueda.optim.schedules import Schedule

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR


def torch_scheduler(optimizer: Optimizer, schedule: Schedule, *, last_step: int = -1) -> LambdaLR:
    """Return a torch scheduler; call its `step()` after each `optimizer.step()`.

    The first parameter group follows the schedule; the others keep their ratio to it.

    Args:
        optimizer: the optimizer; the `lr` of its groups only sets their ratios.
        schedule: the learning rate as a function of the step.
        last_step: the last step that was made, if a training is resumed.

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


def correct_momentum(
    optimizer: Optimizer, old_rate: float, new_rate: float, *, buffer: str = "momentum_buffer"
) -> None:
    """Multiply the momentum by new_rate / old_rate: Goyal et al. 2017, section 3, for buffers that include the rate.

    SGD with momentum has two forms, which are equal as long as the rate is constant:

        (a)  v <- m v + g          w <- w - rate v      torch.optim.SGD, and LARC around it
        (b)  u <- m u + rate g     w <- w - u           the LARS paper, Caffe

    with u = rate v. When the rate changes from r to r', form (a) moves by r' (m v + g): the whole momentum is rescaled
    at once. Form (b) moves by m r v + r' g: its momentum still has the old rate, which is too small in a warm-up and
    too large after a decay. Multiplying u by r'/r before the step gives m r' v + r' g: form (a).

    Call this before the first step at the new rate if the buffer includes the rate (form b). torch's SGD does not need
    it; `keep_velocity` does the opposite there. A state without momentum is not changed, and neither is one from a
    step at rate 0, which cannot be rescaled.

    Args:
        optimizer: the optimizer, whose state is changed in place.
        old_rate, new_rate: the rates of the last step and of the next one.
        buffer: the name of the momentum in the optimizer's state.
    """
    factor = momentum_factor(old_rate, new_rate)
    if factor != 1.0:
        _scale_buffers(optimizer, factor, buffer)


def momentum_factor(old_rate: float, new_rate: float) -> float:
    """Return the factor of :func:`correct_momentum`; 1 after a step at rate 0, whose momentum cannot be rescaled.

    >>> momentum_factor(0.1, 0.2), momentum_factor(0.0, 0.2)
    (2.0, 1.0)
    """
    return new_rate / old_rate if old_rate != 0 else 1.0


def keep_velocity(optimizer: Optimizer, old_rate: float, new_rate: float, *, buffer: str = "momentum_buffer") -> None:
    """Make an optimizer of form (a), such as torch's SGD, move like form (b) without correction.

    With v' = v r/r', form (a) moves by r' (m v' + g) = m r v + r' g: the momentum keeps its length when the rate
    changes. Call it before the first step at the new rate; see `correct_momentum` for the two forms.
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
