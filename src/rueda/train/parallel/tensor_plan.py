"""Which matrices tensor parallelism splits, for training and for planning.

Of two linear layers with nothing but elementwise functions, or attention, between them, the first is split by columns
of its outputs and the second by rows of its inputs (Shoeybi et al. 2019, arXiv:1909.08053)::

    y = g(x A) B        A = [A_1 A_2],  B = [B_1; B_2]        y = g(x A_1) B_1 + g(x A_2) B_2

Each worker computes one term from the whole x, and the terms are summed up by one all-reduce; another one sums up the
gradient of x. What lies between the two exists in slices only. A plan has

- the blocks of the built-in transformers: attention, whose slices are whole heads, and the perceptron behind it,
- pairs of linear layers within an ``nn.Sequential``, with functions such as ReLU between them,
- or what the task says: ``Task(tensor_plan={"up": ColwiseParallel(), "down": RowwiseParallel()})`` with the styles of
  ``torch.distributed.tensor.parallel`` by the names of modules, in which ``*`` stands for one part of a name.

All other layers are whole on each worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from rueda.errors import TaskError
from rueda.tasks.models.transformer import Block
from rueda.train.parallel.stages import is_plain_sequence

COLUMNS, ROWS = "columns", "rows"
_BLOCK = (("attention.qkv", "attention.out"), ("mlp.0", "mlp.2"))
_ELEMENTWISE = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.LeakyReLU, nn.Softplus, nn.Identity)


def split_plan(model: nn.Module, own: Mapping[str, Any] | None = None, *, slices: int = 1) -> dict[str, str]:
    """Return the modules that are split, and how: by columns or by rows; of a task's plan, other styles are left out.

    Args:
        model: the model.
        own: the task's plan.
        slices: the number of workers; what they cannot divide evenly is not split.

    >>> model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2), nn.Linear(2, 2))
    >>> split_plan(model), split_plan(model, slices=4)
    ({'0': 'columns', '2': 'rows'}, {})
    """
    if own is not None:
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

        kinds = {ColwiseParallel: COLUMNS, RowwiseParallel: ROWS}
        named = styles_of(model, own)
        return {name: kinds[type(style)] for name, style in named.items() if type(style) in kinds}
    plan: dict[str, str] = {}
    shared = shared_parameters(model)
    for first, second in _pairs(model):
        own_parameters = (model.get_submodule(name).parameters() for name in (first, second))
        is_tied = any(id(one) in shared for parameters in own_parameters for one in parameters)
        if not is_tied and _slices_evenly(model, first, second, slices):
            plan |= {first: COLUMNS, second: ROWS}
    return plan


def styles_of(model: nn.Module, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task's styles by the names of the model's modules.

    Raises:
        TaskError: names belong to no module, a value is no parallel style, or a parameter is shared.
    """
    from torch.distributed.tensor.parallel import ParallelStyle

    names = [name for name, _ in model.named_modules() if name]
    unknown = [pattern for pattern in own if not any(_fits(name, pattern) for name in names)]
    if unknown:
        expected = "names of modules of the model"
        raise TaskError("tensor_plan", expected=expected, got=", ".join(unknown), do=_meant(unknown, model))
    found: dict[str, Any] = {}
    for pattern, style in own.items():
        if not isinstance(style, ParallelStyle):
            expected, do = "a style of torch.distributed.tensor.parallel", "write e.g. ColwiseParallel()"
            raise TaskError(f"tensor_plan[{pattern!r}]", expected=expected, got=style, do=do)
        found |= dict.fromkeys((name for name in names if _fits(name, pattern)), style)
    shared = shared_parameters(model)
    for name in found:
        if any(id(one) in shared for one in model.get_submodule(name).parameters()):
            do = "leave it out of the plan"
            raise TaskError("tensor_plan", expected="layers with parameters of their own", got=name, do=do)
    return found


def _meant(unknown: Iterable[str], model: nn.Module) -> str:
    """Return which layers names that belong to none may mean, or else some that there are."""
    layers = [name for name, module in model.named_modules() if name and module._parameters]
    similar = dict.fromkeys(name for pattern in unknown for name in get_close_matches(pattern, layers, 1))
    if similar:
        return f"did you mean {', '.join(similar)}?"
    return f"name modules as model.named_modules() does, such as {', '.join(layers[:3])}"


def shared_parameters(model: nn.Module) -> set[int]:
    """Return the ids of the parameters that several modules have, such as a tied embedding."""
    seen: set[int] = set()
    shared: set[int] = set()
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            (shared if id(parameter) in seen else seen).add(id(parameter))
    return shared


def parts_of(model: nn.Module, name: str) -> int:
    """Return how many matrices the rows of a weight belong to: three for the one of queries, keys and values.

    A slice of a linear layer has consecutive rows of each of them.
    """
    owner = name.rpartition(".attention.qkv")[0]
    return 3 if owner and isinstance(model.get_submodule(owner), Block) else 1


def _fits(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(fnmatchcase(*pair) for pair in zip(parts, wanted, strict=True))


def _pairs(model: nn.Module) -> list[tuple[str, str]]:
    """Return the pairs of linear layers, by name."""
    found: list[tuple[str, str]] = []
    places = Counter(id(child) for module in model.modules() for child in module._modules.values())
    for name, module in model.named_modules():
        if isinstance(module, Block):
            found += [(f"{name}.{first}", f"{name}.{second}") for first, second in _BLOCK]
        elif is_plain_sequence(module) and not _is_in_block(model, name):
            found += [
                tuple(f"{name}.{part}" if name else part for part in pair)  # type: ignore[misc]
                for pair in _pairs_in_sequence(module, places)
            ]
    return found


def _is_in_block(model: nn.Module, name: str) -> bool:
    return bool(name) and isinstance(model.get_submodule(name.rpartition(".")[0]), Block)


def _pairs_in_sequence(sequence: nn.Sequential, places: Counter[int]) -> list[tuple[str, str]]:
    """Return pairs of linear layers with elementwise functions between them; no layer is in two of them.

    Dropout between them would draw the same numbers for each slice, so such layers are no pair. A layer that has
    several places in the model may be the first of a pair in one of them only, so it is in none.
    """
    found: list[tuple[str, str]] = []
    first: str | None = None
    for name, module in sequence._modules.items():  # named_children() leaves out the second place of a layer
        if module is not None and _is_plain_linear(module) and places[id(module)] == 1:
            if first is None:
                first = name
            else:
                found.append((first, name))
                first = None
        elif not (isinstance(module, _ELEMENTWISE) or (isinstance(module, nn.Dropout) and module.p == 0)):
            first = None
    return found


def _is_plain_linear(module: nn.Module) -> bool:
    """Return whether a linear layer has its own forward pass and weight, and not those of LoRA or a weight norm."""
    if not isinstance(module, nn.Linear) or type(module).forward is not nn.Linear.forward:
        return False
    return module._parameters.keys() == {"weight", "bias"}


def _slices_evenly(model: nn.Module, first: str, second: str, slices: int) -> bool:
    """Return whether a pair has as many columns and rows as slices can have, of attention as many heads."""
    inner = model.get_submodule(second)
    assert isinstance(inner, nn.Linear), "a pair is two linear layers"
    if parts_of(model, first) > 1:
        heads: int = model.get_submodule(first.rpartition(".")[0]).heads  # type: ignore[assignment]
        return heads % slices == 0
    return inner.in_features % slices == 0
