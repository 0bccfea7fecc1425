"""What the collectives of a step carry, by the group of workers among which they run.

The workers of a form are a mesh (:class:`rueda.records.recipe.parallel_form.Mesh`); a collective among the tensor
slices of a layer carries activations, one among replicas or the owners of a shared parameter carries gradients:

==================  ==================  ==========================================================================
collective          among               carries
==================  ==================  ==========================================================================
``all-gather``      shards              parameters
``reduce-scatter``  shards              gradients
``all-reduce``      tensor slices       activations, and in the backward pass their gradients
``all-reduce``      replicas, stages    gradients; among stages those of parameters that several of them use
``send``            stages              activations, and in the backward pass their gradients
==================  ==================  ==========================================================================
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rueda.measure.wire_bytes import WireBytes
from rueda.records.parallelism import Traffic, sent_bytes
from rueda.records.recipe.parallel_form import Mesh

SMALL_BYTES = 256
"""collectives of at most so many bytes are counts, losses and norms of the loop, not a part of the model"""

Sent = dict[tuple[str, str], float]
"""(what is carried, collective) -> bytes that a worker sends"""


def counted() -> WireBytes:
    """Return a counter of the collectives that carry a part of the model."""
    return WireBytes(at_least=SMALL_BYTES + 1)


def carried(kind: str, ranks: Sequence[int], mesh: Mesh, rank: int) -> str:
    """Return what a collective among some ranks carries.

    >>> mesh = Mesh(data=2, tensor=2)
    >>> carried("all-reduce", (2, 3), mesh, 3), carried("all-reduce", (1, 3), mesh, 3)
    ('activations', 'gradients')
    """
    if kind == "send":
        return "activations"
    of = {tuple(group): name for name, group in groups_of(mesh, rank).items()}.get(tuple(ranks))
    found = {
        ("sharded", "all-gather"): "parameters",
        ("sharded", "reduce-scatter"): "gradients",
        ("tensor", "all-reduce"): "activations",
        ("data", "all-reduce"): "gradients",
        ("pipeline", "all-reduce"): "gradients",
    }
    return found.get((of or "", kind), "other")


def groups_of(mesh: Mesh, rank: int) -> dict[str, list[int]]:
    """Return the ranks with which one works together in each form of a mesh; tensor slices are neighbours.

    >>> groups_of(Mesh(data=2, tensor=2), 3)
    {'data': [1, 3], 'tensor': [2, 3]}
    """
    found, stride = {}, 1
    for name in reversed(mesh._fields):
        size = getattr(mesh, name)
        if size > 1:
            first = rank - rank // stride % size * stride
            found[name] = [first + stride * place for place in range(size)]
        stride *= size
    return dict(reversed(found.items()))


def sent(wire: WireBytes, mesh: Mesh, rank: int) -> Sent:
    """Return the bytes of each kind that a rank has sent."""
    found: Sent = {}
    for key, num_bytes in wire.tensors.items():
        what = carried(key.kind, key.ranks, mesh, rank), key.kind
        if size := sent_bytes(key.kind, num_bytes, len(key.ranks)):
            found[what] = found.get(what, 0.0) + size
    return found


def mean_traffic(of_workers: Sequence[Sent]) -> tuple[Traffic, ...]:
    """Return the mean over the workers.

    >>> mean_traffic([{("activations", "send"): 8.0}, {}])
    (Traffic(carries='activations', collective='send', num_bytes=4.0),)
    """
    kinds = dict.fromkeys(kind for one in of_workers for kind in one)
    return tuple(
        Traffic(
            carries=carries, collective=collective,
            num_bytes=statistics.mean(one.get((carries, collective), 0.0) for one in of_workers),
        )
        for carries, collective in kinds
    )  # fmt: skip
