"""The shapes of what the stages of a pipeline pass to each other, found without a message.

torch's stages find their shapes in a first pass: each runs on what it is told of the stage before, and tells the next
one what comes out. Here every worker passes a micro-batch without values through all stages on the *meta* device, its
own and the others', whose parameters have a shape there and no memory. This needs no message and no memory. Where it
does not work on any of them (a layer reads a value, or makes a tensor on a device of its own), all stages tell each
other, as torch's vote before the first pass decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rueda.data.nest import map_tensors, tensors
from rueda.train.counting import on_meta, without_values
from rueda.train.parallel.stages import Stage


class StageShapes(NamedTuple):
    """What a stage takes and returns for a micro-batch, as tensors without values."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


def shapes_of(
    stages: Sequence[Stage], arguments: tuple[Any, ...], named: dict[str, Any], number: int, *, trains: bool
) -> list[StageShapes] | None:
    """Return the shapes of each stage; None if they cannot be found without values.

    Args:
        stages: all stages of a pipeline.
        arguments: a batch, as the first stage takes it.
        named: its inputs by name.
        number: how many equal micro-batches it is cut into.
        trains: whether gradients are passed back, which the tensors say by ``requires_grad``.

    >>> first, last = Stage([nn.Linear(4, 3)]), Stage([nn.Linear(3, 2)])
    >>> shapes = shapes_of([first, last], (torch.ones(8, 4),), {}, 2, trains=True)
    >>> shapes is not None and [(list(one.inputs[0].shape), list(one.outputs[0].shape)) for one in shapes]
    [([4, 4], [4, 3]), ([4, 3], [4, 2])]
    """
    given = list(tensors([arguments, named]))
    device = given[0].device.type if given else "cpu"
    if torch.is_autocast_enabled(device) or any(one.dim() == 0 or len(one) % number for one in given):
        return None  # autocast knows no *meta* device, so that the types would be others
    found: list[StageShapes] = []
    try:
        with torch.set_grad_enabled(trains), torch.random.fork_rng(devices=[]), without_values(nn.ModuleList(stages)):
            for stage in stages:
                for name, parameter in stage.named_parameters():
                    parameter.requires_grad_(name in stage.trained)
            value, by_name = map_tensors(lambda one: on_meta(one[: len(one) // number]), (arguments, named))
            for stage in stages:
                stage.infers_shapes = True
                outputs = stage(*value, **by_name)
                results = outputs if isinstance(outputs, tuple) else (outputs,)
                if not all(isinstance(one, Tensor) and one.is_meta for one in (*value, *results)):
                    return None
                found.append(StageShapes(value, results))
                value, by_name = tuple(one.detach().requires_grad_(one.requires_grad) for one in results), {}
    except Exception:  # whatever a layer does that needs values
        return None
    return found
