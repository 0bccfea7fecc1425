"""The prelude of an elastic script: its collectives before the first ``elastic.run``.

A worker that joins a running job runs the script from its beginning, and so its prelude, in which the others cannot
take part: they wait for it in ``elastic.run``. Horovod's manual therefore forbids collectives there, and a script that
has one nevertheless waits for ever once a worker joins. Here the workers keep what these collectives returned, and rank
0, which is never a worker that joins while there is another, gives it to those that come later:

==============================  ================================================================================
what the joining worker calls   what it gets
==============================  ================================================================================
what the others also call in    the result of all workers, as ever: a published script fits one batch in both
a reset callback
what the others called in       the result that they got then
their prelude
anything else                   an error that names the collective
==============================  ================================================================================

So it knows the same as the others, such as the epoch that rank 0 broadcast when the job began; ``elastic.run`` then
gives it the present state. The coordinator (:mod:`rueda.hvd.core.coordinator`) notices that a collective waits for
workers that wait in ``elastic.run``; nothing depends on a time-out.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from rueda.hvd.core.collectives import overwrite
from rueda.hvd.core.entries import (
    ALLGATHER,
    ALLREDUCE,
    BARRIER,
    BROADCAST,
    KINDS,
    TYPE_NAMES,
    Entry,
    Key,
    Signature,
    from_bytes,
    to_bytes,
)  # fmt: skip

ENTRANCE = "elastic.have_state"
"""the name of the all-gather by which all workers enter ``elastic.run``"""
ENTRANCE_KEY: Key = (0, ALLGATHER, ENTRANCE)
MOST_BYTES = 2**28
"""results of more bytes than this are not kept"""
_SAME_ON_ALL_RANKS = (ALLREDUCE, ALLGATHER, BROADCAST, BARRIER)


class Kept(NamedTuple):
    """The result of a collective, as plain values that can be sent."""

    types: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    contents: tuple[bytes, ...]

    def give(self, entry: Entry) -> None:
        """Make this the result of an entry."""
        results = [
            from_bytes(content, getattr(torch, dtype)).view(shape).to(entry.signature.device)
            for dtype, shape, content in zip(*self, strict=True)
        ]
        if entry.outputs is None:
            entry.result = results
            return
        for output, result in zip(entry.outputs, results, strict=True):
            overwrite(output, result)
        entry.result = entry.outputs


class Prelude:
    """What the collectives of this process's prelude returned; it outlives the engines.

    >>> prelude, x = Prelude(), torch.tensor([7])
    >>> entry = Entry(0, "x", Signature(BROADCAST, 1, 0, 1.0, 1.0, "cpu", ("int64",), ((1,),)), [x], result=[x])
    >>> prelude.keep(entry)
    >>> prelude.find(entry.key, entry.signature, 0).shapes, prelude.find(entry.key, entry.signature, 1)
    (((1,),), None)
    """

    def __init__(self) -> None:
        self.is_over = False
        """whether this process has come to ``elastic.run``"""
        self._kept: dict[Key, list[tuple[Signature, Kept]]] = {}
        self._num_bytes = 0

    def keep(self, entry: Entry) -> None:
        """Keep the result of a collective, if it is the same on all ranks."""
        if entry.process_set != 0 or entry.signature.kind not in _SAME_ON_ALL_RANKS:
            return
        tensors = [result.detach() for result in entry.result or ()]
        self._num_bytes += sum(tensor.nbytes for tensor in tensors)
        if self._num_bytes > MOST_BYTES:  # from then on nothing, so that the n-th of a name remains the n-th
            return
        kept = Kept(
            tuple([TYPE_NAMES[tensor.dtype] for tensor in tensors]),
            tuple([tuple(tensor.shape) for tensor in tensors]),
            tuple([to_bytes([tensor.cpu().contiguous()]) for tensor in tensors]),
        )
        self._kept.setdefault(entry.key, []).append((entry.signature, kept))

    def find(self, key: Key, signature: Signature, number: int) -> Kept | None:
        """Return the result of the collective that was the ``number``-th of its name, from 0, if there is one."""
        results = self._kept.get(key, [])
        if number >= len(results) or results[number][0] != signature:
            return None
        return results[number][1]


def refusal(key: Key) -> str:
    """Return what a joining worker is told whose collective nobody can take part in.

    >>> print(refusal((0, BROADCAST, "epoch")))
    broadcast 'epoch': expected no such call before hvd.elastic.run on a worker that joins a running job, since the
    others are in hvd.elastic.run already and have kept no result of it; move it into the function of hvd.elastic.run
    """
    _, kind, name = key
    return (
        f"{KINDS[kind]} {name!r}: expected no such call before hvd.elastic.run on a worker that joins a running job, "
        "since the others are in hvd.elastic.run already and have kept no result of it; move it into the function of "
        "hvd.elastic.run"
    )


_prelude = Prelude()


def of_this_process() -> Prelude:
    """Return the prelude of this process."""
    return _prelude
