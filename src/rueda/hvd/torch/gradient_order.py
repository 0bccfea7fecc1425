"""Agreement of all ranks on the order of their gradients, so that later steps need no negotiation by name.

Each rank tells the others in which order its gradients became final, and which of them were sparse. All ranks adopt
the order of the first rank. Gradients that did not become final there come last, with later parameters first, which is
the usual order of a backward pass. Gradients that were sparse on any rank are left out, since they are gathered and
not summed.
"""

from __future__ import annotations

from typing import NamedTuple

from rueda.hvd.common.process_sets import ProcessSet
from rueda.hvd.torch.functions import allgather_object
from rueda.hvd.torch.parameters import NamedParameters


def agree_on_order(
    named: NamedParameters, finals: list[int], sparse: list[int], name: str, process_set: ProcessSet
) -> list[int]:
    """Return the numbers of the parameters in the order that all ranks agree on, without the sparse ones.

    Args:
        named: the parameters.
        finals: their numbers, in the order in which the gradients became final on this rank.
        sparse: the numbers of those whose gradients are gathered and not summed.
        name: the name of the collective.
        process_set: the ranks that agree.

    Raises:
        HorovodInternalError: a rank has joined, or the process group has failed.
    """
    own = Proposal([named.names[n] for n in finals], [named.names[n] for n in sparse])
    return merge_orders(named.names, allgather_object(own, name, process_set))


class Proposal(NamedTuple):
    """One rank's parameters in the order in which their gradients became final, and those with sparse gradients."""

    final: list[str]
    sparse: list[str]


def merge_orders(names: list[str], proposals: list[Proposal]) -> list[int]:
    """Merge the proposals of all ranks into one order.

    >>> merge_orders(["a", "b", "c", "d"], [Proposal(["d", "b"], []), Proposal(["b", "a", "d"], ["c"])])
    [3, 1, 0]
    """
    number_of = {name: number for number, name in enumerate(names)}
    sparse = {number_of[name] for proposal in proposals for name in proposal.sparse}
    first = [number_of[name] for name in proposals[0].final]
    return [n for n in dict.fromkeys([*first, *reversed(range(len(names)))]) if n not in sparse]
