"""From one trained model to another along a straight line: f((1 - alpha) A + alpha B), alpha in [-1, 2].

Keskar et al. 2017 (1609.04836) put the minimum of a small batch at alpha = 0 and that of a large batch at 1, 25 points:
a sharp minimum is a narrow valley. With batch norm the running statistics have to follow the weights. They are either
*interpolated* as the weights are (variances not below 0, which a line may cross outside [0, 1]), or *recalibrated*:
recomputed at each point over training examples, which is what the network at that point would have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from rueda.errors import ExamineError
from rueda.examine.landscape.directions import check_direction
from rueda.examine.landscape.grid import Execution, Objectives, axis, measure, to_sheets
from rueda.examine.objective.examples import Inputs
from rueda.examine.objective.objective import checksum
from rueda.examine.objective.temporary_parameters import check_finite
from rueda.nn.convert import BatchNorm
from rueda.records.landscape import Interpolation
from rueda.world.device import to_float64

State = Mapping[str, Tensor]
"""parameters and buffers by name, as ``model.state_dict()`` gives them"""


def interpolate(
    objectives: Objectives,
    end: State,
    *,
    names: tuple[str, str] = ("A", "B"),
    alphas: Sequence[float] | None = None,
    recalibrate_on: Inputs | None = None,
    execution: Execution | None = None,
) -> Interpolation:
    """Evaluate the line from the objectives' model (alpha = 0) to another model of the same kind (alpha = 1).

    Args:
        objectives: by split, all on model A.
        end: the state of model B.
        names: the names of A and B in the record.
        alphas: the points of the line; by default 25 in [-1, 2].
        recalibrate_on: training inputs over which batch-norm statistics are recomputed at each point; without them the
            statistics are interpolated.
        execution: which workers compute.

    Raises:
        ExamineError: B is another kind of model, or has the same weights as A.
    """
    first = next(iter(objectives.values()))
    steps = tuple(float(value) for value in (alphas or axis(-1.0, 2.0, 25)))
    start = first.origin
    last = [_of(end, name, like) for name, like in zip(first.names, start, strict=True)]
    for name, tensor in zip(first.names, last, strict=True):
        check_finite(tensor, f"the parameter {name} of {names[1]}")
    check_direction(
        [to_float64(b) - to_float64(a) for a, b in zip(start, last, strict=True)],
        f"the line from {names[0]} to {names[1]}",
    )
    buffers = {
        name: (buffer.detach(), _of(end, name, buffer))
        for name, buffer in first.model.named_buffers()
        if buffer.is_floating_point() and name in end
    }

    def go(index: int) -> None:
        alpha = steps[index]
        first.set([blend(one, other, alpha) for one, other in zip(start, last, strict=True)])
        if recalibrate_on is None:
            mixed = {name: blend(one, other, alpha) for name, (one, other) in buffers.items()}
            first.set_buffers({n: v.clamp_min(0.0) if n.endswith("running_var") else v for n, v in mixed.items()})

    values = measure(
        objectives,
        len(steps),
        go,
        key=("interpolation", checksum(last), checksum(other for _, other in buffers.values()), steps),
        execution=execution,
        description=f"from {names[0]} to {names[1]}",
        recalibrate_on=recalibrate_on,
    )
    has_norm = any(isinstance(module, BatchNorm) for module in first.model.modules())
    kind = "none" if not has_norm else "interpolated" if recalibrate_on is None else "recalibrated"
    sheets = to_sheets(values, len(steps))
    return Interpolation(start=names[0], end=names[1], alphas=steps, sheets=sheets, batch_norm=kind)


def blend(start: Tensor, end: Tensor, alpha: float) -> Tensor:
    """Return (1 - alpha) start + alpha end, in float64: exactly the ends at 0 and 1.

    >>> import torch
    >>> blend(torch.tensor([0.1]), torch.tensor([0.3]), 1.0).float() == torch.tensor([0.3])
    tensor([True])
    """
    return (1.0 - alpha) * to_float64(start) + alpha * to_float64(end)


def _of(state: State, name: str, like: Tensor) -> Tensor:
    found = state.get(name)
    if found is None or found.shape != like.shape:
        got = "none" if found is None else list(found.shape)
        do = "interpolate between two models of one kind"
        raise ExamineError(f"{name} of the second model", expected=f"shape {list(like.shape)}", got=got, do=do)
    return found.to(like.device)
