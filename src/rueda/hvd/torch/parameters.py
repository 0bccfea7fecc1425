"""The names of an optimizer's parameters, and the groups in which their gradients are reduced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rueda.hvd.common.util import split_list


@dataclass(frozen=True)
class NamedParameters:
    """The trainable parameters of an optimizer, in its order, and a name for each."""

    names: list[str]
    parameters: list[Tensor]


def name_parameters(optimizer: torch.optim.Optimizer, given: Iterable[tuple[str, Tensor]] | None) -> NamedParameters:
    """Return every trainable parameter of an optimizer with its name, or with its position as a name.

    >>> weight = torch.zeros(2, requires_grad=True)
    >>> name_parameters(torch.optim.SGD([weight]), [("a", weight), ("a", weight)])
    Traceback (most recent call last):
    ValueError: named_parameters: expected unique names, got 'a' more than once; join the lists of several models ...
    """
    trainable = {
        parameter: f"{i}.{j}"
        for i, group in enumerate(optimizer.param_groups)
        for j, parameter in enumerate(group["params"])
        if parameter.requires_grad
    }
    if given is None:
        return NamedParameters([f"allreduce.noname.{position}" for position in trainable.values()], list(trainable))
    pairs = list(given)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
        raise ValueError(
            "named_parameters: expected pairs of name and parameter, got something else; give model.named_parameters()"
        )
    name, count = Counter(name for name, _ in pairs).most_common(1)[0] if pairs else ("", 0)
    if count > 1:
        raise ValueError(
            f"named_parameters: expected unique names, got {name!r} more than once; "
            "join the lists of several models with a prefix for each"
        )
    name_of = {parameter: name for name, parameter in pairs}
    missing = [position for parameter, position in trainable.items() if parameter not in name_of]
    if missing:
        raise ValueError(
            f"named_parameters: expected a name for every parameter, got none for {len(missing)} of them (the first is "
            f"number {missing[0]}, group.position); give all models' named_parameters()"
        )
    return NamedParameters([name_of[parameter] for parameter in trainable], list(trainable))


def number_groups(named: NamedParameters, groups: int | Sequence[Sequence[Tensor]]) -> list[list[int]]:
    """Return the groups as lists of parameter numbers, from a number of groups or from lists of parameters.

    >>> named = NamedParameters(list("abcde"), [torch.zeros(1) for _ in range(5)])
    >>> number_groups(named, 2)
    [[0, 1, 2], [3, 4]]
    """
    total = len(named.parameters)
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(f"groups: expected at least 0, or lists of parameters, got {groups}; correct it")
        number = min(groups, total)
        return [list(part) for part in split_list(range(total), number)] if number else []
    number_of = {parameter: number for number, parameter in enumerate(named.parameters)}
    numbered = [[number_of[parameter] for parameter in group if parameter in number_of] for group in groups]
    flat = [number for group in numbered for number in group]
    if len(set(flat)) < len(flat):
        raise ValueError("groups: expected every parameter in at most one group, got one in several; name it once")
    return [group for group in numbered if group]
