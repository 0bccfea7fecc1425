"""How a loss is computed, read from its graph: what is compared with the serial script, and what a mean is divided by.

The mean over a batch is the mean over its shares, weighted by their numbers of examples, only if the loss divides by
the number of examples. Many divide by something else: class weights, the tokens that are not padding, the sum of a
mask. Then share w has the weight D_w / (D_1 + ... + D_N), where D_w is what this worker's loss was divided by:

    sum_i l_i / sum_w D_w  =  sum_w (D_w / sum D) (sum_{i in w} l_i / D_w)

autograd keeps these numbers for the backward pass: ``NllLossBackward0`` its total weight, ``DivBackward0`` its divisor,
``MeanBackward0`` the number of its elements. :func:`loss_graph` reads them, and the names of the last operations, by
which a loss is recognised that is computed in another way than those that were verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from rueda.check.scale.share import Share

_NUM_BENEATH = 2  # operations below a reduction that belong to the kind of a loss
_NUM_NODES = 256
_CLOSE = 1e-6
_CURVED = {
    "Sqrt",
    "Rsqrt",
    "Pow",
    "Log",
    "Log1p",
    "Exp",
    "Sigmoid",
    "Reciprocal",
    "LinalgVectorNorm",
    "Norm",
    "LogSumExp",
}


@dataclass(frozen=True)
class LossGraph:
    """How a loss was computed."""

    kind: str = ""
    """the names of its last operations"""
    kept: tuple[Any, ...] = ()
    """what parts of it were divided by, as autograd keeps it: read only when the backward pass is on its way"""

    is_linear: bool = True
    """whether it is linear in the sums over its batch, as far as these operations tell: a ratio of two is not"""

    @cached_property
    def divisors(self) -> tuple[float, ...]:
        """The numbers by which parts of it were divided; a factor of 1 / 3 counts as 3."""
        return tuple(map(float, self.kept))


def loss_graph(roots: Sequence[Tensor]) -> LossGraph:
    """Read the last operations of a loss: those with a single number as result, and two below each of them.

    >>> import torch
    >>> losses, mask = torch.ones(4, requires_grad=True) * 3, torch.tensor([1.0, 0.0, 1.0, 1.0])
    >>> found = loss_graph([(losses * mask).sum() / mask.sum()])
    >>> found.kind, found.divisors
    ('Div Sum Mul Mul', (3.0,))
    >>> found.is_linear, loss_graph([losses.sum() / losses.square().sum()]).is_linear
    (True, False)
    """
    waiting: list[tuple[Any, int]] = [(root.grad_fn, 0) for root in roots if root.grad_fn is not None]
    seen = {node for node, _ in waiting}
    names: list[str] = []
    divisors: list[Any] = []
    is_linear = True
    while waiting and len(names) < _NUM_NODES:
        node, depth = waiting.pop(0)
        names.append(node.name().removesuffix("Backward0").removesuffix("Backward1"))
        if depth == 0:
            divisors += _divisors(node)
            product = names[-1] in ("Div", "Mul") and all(following is not None for following, _ in node.next_functions)
            is_linear = is_linear and not product and names[-1] not in _CURVED
        for following, _ in node.next_functions:
            if following is None or following in seen or hasattr(following, "variable"):
                continue
            below = 0 if depth == 0 and _is_number(following) else depth + 1
            if below <= _NUM_BENEATH:
                seen.add(following)
                waiting.append((following, below))
    return LossGraph(" ".join(names), tuple(divisors), is_linear)


def _is_number(node: Any) -> bool:
    metadata = getattr(node, "_input_metadata", ())
    return len(metadata) > 0 and all(len(one.shape) == 0 for one in metadata)


def _divisors(node: Any) -> list[Any]:
    """Return what an operation with a single number as result divides by; nothing if it does not divide."""
    name = node.name()
    if name == "MeanBackward0":
        return [node._saved_self_sym_numel]
    if getattr(node, "_saved_reduction", 0) == 1:
        total = getattr(node, "_saved_total_weight", None)
        if total is None:
            total = getattr(getattr(node, "_saved_self", None), "numel", lambda: 1)()
        return [total]
    operands = [following for following, _ in node.next_functions]
    if name == "DivBackward0" and len(operands) == 2 and operands[1] is None:
        return _number(node._saved_other)
    if name == "MulBackward0" and len(operands) == 2 and None in operands:
        return [1 / one for one in _number(node._saved_other if operands[1] is None else node._saved_self)]
    return []


def _number(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) and value.dim() == 0 else []


def normalised(divisors: Sequence[float], share: Share) -> list[tuple[str, float]]:
    """Return the divisors in a form that is the same on workers whose examples weigh alike, as a rule.

    >>> normalised([16.0, 3.0], Share(low=0, rows=8, whole=16, num_counted=8))
    [('for each example', 2.0), ('', 3.0)]
    """
    return [("for each example", one / share.rows) if one and one % share.rows == 0 else ("", one) for one in divisors]


def weights(divisors: Sequence[Sequence[float]], shares: Sequence[Share]) -> list[float] | None:
    """Return the weight of each worker's gradient, of which the sum is 1; None if the examples weigh alike.

    Args:
        divisors: those of every worker.
        shares: the share of every worker.

    >>> shares = [Share(0, 2, 4, 2), Share(2, 2, 4, 2)]
    >>> weights([(3.0, 4.0), (5.0, 4.0)], shares)
    [0.375, 0.625]
    >>> weights([(2.0,), (2.0,)], shares) is None
    True

    Raises:
        ValueError: parts of the loss weigh the examples in different ways.
    """
    counted = [rank for rank, share in enumerate(shares) if share.num_counted]
    if len({len(divisors[rank]) for rank in counted}) > 1:
        raise ValueError("the workers compute the loss in different ways")
    found: list[float] | None = None
    for column in zip(*(divisors[rank] for rank in counted), strict=True):
        for_each = [value / shares[rank].rows for rank, value in zip(counted, column, strict=True)]
        if _alike(column) or _alike(for_each):
            continue
        total = sum(column)
        relative = dict(zip(counted, (value / total for value in column), strict=True))
        these = [relative.get(rank, 0.0) for rank in range(len(shares))]
        if found is not None and any(abs(a - b) > _CLOSE for a, b in zip(found, these, strict=True)):
            raise ValueError("parts of the loss are means over different numbers of tokens or examples")
        found = these
    return found


def _alike(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= _CLOSE * max(map(abs, values))
