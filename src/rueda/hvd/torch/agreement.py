"""How ranks agree on an order of gradients, so that they need not be matched by name any more.

Each rank tells in which order its gradients became final, and which of them were sparse. All follow the order of the
first; what did not become final there comes last, later parameters first, as a backward pass would meet them. What was
sparse on any rank stays outside, since it is gathered, not summed.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import torch

from rueda.hvd.common.process_sets import ProcessSet
from rueda.hvd.torch import mpi_ops as ops
from rueda.hvd.torch.parameters import Named


def agree_on_order(named: Named, finals: list[int], name: str, process_set: ProcessSet) -> list[int]:
    """Ask all ranks of a set; gives the numbers of the parameters in the order of all, without the sparse ones.

    Args:
        named: the parameters, with the gradients of this step.
        finals: their numbers, in the order in which the gradients became final on this rank.
        name: what the ranks find each other by.
        process_set: among whom.

    Raises:
        HorovodInternalError: somebody has joined, or the world has failed.
    """
    sparse = [parameter.grad is not None and parameter.grad.is_sparse for parameter in named.parameters]
    own = Proposal(
        final=[named.names[n] for n in finals],
        sparse=[one for one, is_sparse in zip(named.names, sparse, strict=True) if is_sparse],
    )
    data = torch.frombuffer(bytearray(json.dumps(own).encode() + b"\n"), dtype=torch.uint8)
    gathered = ops.allgather(data, name=name, process_set=process_set)
    return merge_orders(named.names, [Proposal(*json.loads(line)) for line in bytes(gathered.tolist()).splitlines()])


class Proposal(NamedTuple):
    """What a rank tells: the parameters whose gradients became final, in that order, and those with sparse ones."""

    final: list[str]
    sparse: list[str]


def merge_orders(names: list[str], proposals: list[Proposal]) -> list[int]:
    """Make one order of the proposals of all ranks.

    >>> merge_orders(["a", "b", "c", "d"], [Proposal(["d", "b"], []), Proposal(["b", "a", "d"], ["c"])])
    [3, 1, 0]
    """
    number_of = {name: number for number, name in enumerate(names)}
    never = {number_of[name] for proposal in proposals for name in proposal.sparse}
    first = [number_of[name] for name in proposals[0].final]
    return [n for n in dict.fromkeys([*first, *reversed(range(len(names)))]) if n not in never]
