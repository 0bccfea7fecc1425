"""All-reduces of one tensor that a script submits again and again, with the same arguments.

Most of what a submission costs is the same each time: its arguments are checked, its signature is made. Once the
all-reduce has a number (:mod:`rueda.hvd.core.repetitions`), the engine remembers the arguments by its name; a later
submission compares them, makes an entry, and is done. Whatever differs takes the ordinary way.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from rueda.hvd.common.process_sets import ProcessSet
from rueda.hvd.core import lifecycle
from rueda.hvd.core.entries import Entry
from rueda.hvd.core.repetitions import Repetition
from rueda.hvd.torch.handles import keep

Arguments: TypeAlias = tuple[bool | None, int | None, float, float, ProcessSet]
"""``average``, ``op``, ``prescale_factor``, ``postscale_factor`` and ``process_set`` of an all-reduce"""


class Known(NamedTuple):
    """The arguments of a numbered all-reduce, and the shape and dtype of its tensor, which is on the CPU."""

    arguments: Arguments
    shape: torch.Size
    dtype: torch.dtype
    repetition: Repetition


def resubmit(tensor: Tensor, name: Any, arguments: Arguments, outputs: list[Tensor] | None) -> int | None:
    """Submit an all-reduce as the last one of this name; return None if it is not known, or not the same.

    Args:
        tensor: the tensor of this rank.
        name: its name.
        arguments: the other arguments.
        outputs: the tensor itself if the all-reduce is in place; None for a new tensor.
    """
    engine = lifecycle.engine()
    known = engine.resubmitted.get(name) if name.__class__ is str else None
    if (
        known is None
        or known.arguments != arguments
        or tensor.shape != known.shape
        or tensor.dtype is not known.dtype
        or not tensor.is_cpu
        or tensor.requires_grad
        or not tensor.is_contiguous()
    ):
        return None
    repetition = known.repetition
    number = repetition.key[0]
    if number and (arguments[4].process_set_id != number or number not in engine.sets):  # removed
        return None
    entry = Entry(number, name, repetition.signature, [tensor], outputs)
    engine.submit_repetition(entry, repetition)
    return keep(engine, entry)


def remember(tensor: Tensor, name: Any, arguments: Arguments, entry: Entry) -> None:
    """Remember the arguments of an all-reduce that was submitted in the ordinary way, if it has a number."""
    engine = lifecycle.engine()
    repetition = engine.tensor_queue.repetitions.find(entry.process_set, entry.name, entry.signature)
    plain = name.__class__ is str and arguments[0] is None and {type(factor) for factor in arguments[2:4]} <= {float}
    if plain and repetition is not None and tensor.is_cpu and engine.settings.cache_capacity:
        engine.resubmitted[name] = Known(arguments, tensor.shape, tensor.dtype, repetition)
