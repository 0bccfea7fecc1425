"""Running what the coordinator has released, in the order of its responses, which is the same on every rank.

Three ways for the data:

- *Ride*: payloads so small that they came with the negotiation are already here, those of all ranks; each rank combines
  them by itself, in rank order.
- *Fusion*: tensors of one type and operation are copied into one buffer and travel as one.
- *Alone*: a large tensor goes through the process group as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch._C._nn import flatten_dense_tensors, unflatten_dense_tensors

from rueda.hvd.core import adasum, reduce
from rueda.hvd.core.entries import (
    ADASUM,
    ADD_SET,
    ALLREDUCE,
    AVERAGE,
    BARRIER,
    KINDS,
    REMOVE_SET,
    TYPES,
    Entry,
    Key,
    Signature,
    from_bytes,
)  # fmt: skip
from rueda.hvd.core.groups import OPERATIONS, Groups, moved_in_by, wait_for
from rueda.hvd.core.messages import Payloads, Run
from rueda.hvd.core.movers import MOVERS, overwrite
from rueda.hvd.core.timeline import Timeline

Piece: TypeAlias = tuple[Entry, int]  # an entry and the position of one of its tensors


class Reduction(NamedTuple):
    """What tensors must have in common to be reduced as one."""

    operation: int
    prescale: float
    postscale: float
    device: str
    dtype: torch.dtype


@dataclass(eq=False)
class Executor:
    """Runs responses. ``entries`` is the ledger's table, from which finished ones are taken."""

    rank: int
    sets: dict[int, tuple[int, ...]]
    entries: dict[Key, Entry]
    groups: Groups
    fusion_bytes: int
    timeline: Timeline

    def run(self, response: Run) -> list[Entry]:
        """Run one response; gives the entries that are finished."""
        kind, number, names, extras, payloads, absent = response
        table = self.entries
        entries = [
            table.pop((number, name)) if (number, name) in table else _zeros(number, name, absent[name])
            for name in names
        ]
        if self.timeline.active:
            self.timeline.begin(names, KINDS[kind].upper())
        try:
            if entries[0].event is not None:
                for entry in entries:
                    wait_for(entry.event)
            if kind == ALLREDUCE:
                self._allreduce(number, entries, payloads)
            else:
                for entry, extra, payload in zip(entries, extras, payloads, strict=True):
                    self._one(kind, number, entry, extra, payload)
        except Exception:
            for entry in entries:  # back to the table: the engine, which gives the world up, ends them all
                self.entries[entry.key] = entry
            raise
        finally:
            if self.timeline.active:
                self.timeline.end(names)
            on_gpu = entries[0].event is not None
            for entry in entries:
                if on_gpu:
                    entry.event = moved_in_by(entry.tensors)
                entry.tensors = []
        return entries

    # Reductions: many at once.

    def _allreduce(self, number: int, entries: list[Entry], payloads: list[Payloads]) -> None:
        members = self.sets[number]
        for entry in entries:
            entry.result = entry.outputs if entry.outputs is not None else [None] * len(entry.tensors)
        if len(entries) == 1 and len(entries[0].tensors) == 1:
            (entry,), (payload,) = entries, payloads
            reduction = _reduction(entry.signature, entry.tensors[0].dtype)
            if payload is not None:
                self._ride(reduction, [(entry, 0)], [payload], len(members))
            else:
                self._travel(reduction, [(entry, 0)], number, members)
            return
        riding: dict[tuple[Reduction, tuple[bool, ...]], tuple[list[Piece], list[Sequence[bytes | None]]]] = {}
        travelling: dict[Reduction, list[Piece]] = {}
        last: Signature | None = None
        together: list[Piece] | None = None
        for entry, payload in zip(entries, payloads, strict=True):
            if entry.signature is not last:  # many are signed alike
                last = entry.signature
                reductions = [_reduction(last, tensor.dtype) for tensor in entry.tensors]
                together = None
            if payload is None and len(reductions) == 1:  # the usual case: many of them
                if together is None:
                    together = travelling.setdefault(reductions[0], [])
                together.append((entry, 0))
                continue
            if payload is None:
                for position, reduction in enumerate(reductions):
                    travelling.setdefault(reduction, []).append((entry, position))
                continue
            gaps = tuple([part is None for part in payload])  # who is absent must be so from all that are combined
            start = 0
            for position, reduction in enumerate(reductions):
                end = start + entry.tensors[position].nbytes
                pieces, parts = riding.setdefault((reduction, gaps), ([], []))
                pieces.append((entry, position))
                parts.append([None if part is None else part[start:end] for part in payload])
                start = end
        for (reduction, _), (pieces, parts) in riding.items():
            self._ride(reduction, pieces, parts, len(members))
        for reduction, pieces in travelling.items():
            for batch in self._batches(pieces):
                self._travel(reduction, batch, number, members)

    def _ride(
        self, reduction: Reduction, pieces: list[Piece], parts: list[Sequence[bytes | None]], num_ranks: int
    ) -> None:
        if self.timeline.active:
            with self.timeline.phase(_names(pieces, self.timeline), "RIDE"):
                _combine_here(reduction, pieces, parts, num_ranks)
        else:
            _combine_here(reduction, pieces, parts, num_ranks)

    def _travel(self, reduction: Reduction, pieces: list[Piece], number: int, members: tuple[int, ...]) -> None:
        operation, prescale, postscale, device, dtype = reduction
        wire = reduce.travelling_type(dtype, operation)
        tensors = [entry.tensors[index] for entry, index in pieces]
        sizes = [tensor.numel() for tensor in tensors]
        names = _names(pieces, self.timeline)
        alone = len(pieces) == 1
        with self.timeline.phase(names, "COPY_INTO_FUSION_BUFFER"):
            if not alone:
                flat = flatten_dense_tensors(tensors).to(wire)
            elif wire != dtype:
                flat = tensors[0].view(-1).to(wire)
            else:
                ((first, _),) = pieces
                # In place the tensor is the buffer, unless it had to be made contiguous or stands for a joined rank.
                flat = tensors[0].view(-1) if first.outputs is not None else tensors[0].view(-1).clone()
            reduce.scale(flat, prescale)
        if len(members) > 1:
            with self.timeline.phase(names, "GROUP_ALLREDUCE"):
                group = self.groups.get(str(number), members, device)
                if operation == ADASUM:
                    flat = adasum.between(group, members.index(self.rank), len(members), flat, sizes)
                else:
                    group.allreduce([flat], OPERATIONS[reduce.travelling_operation(dtype, operation)]).wait()
        reduce.finish(flat, operation, len(members), postscale)
        with self.timeline.phase(names, "COPY_OUT_OF_FUSION_BUFFER"):
            _hand_out(flat, pieces, sizes)

    def _batches(self, pieces: list[Piece]) -> Iterable[list[Piece]]:
        batch: list[Piece] = []
        num_bytes = 0
        for piece in pieces:
            entry, index = piece
            own_bytes = entry.tensors[index].nbytes
            if batch and num_bytes + own_bytes > self.fusion_bytes:
                yield batch
                batch, num_bytes = [], 0
            batch.append(piece)
            num_bytes += own_bytes
        if batch:
            yield batch

    # The others: one at a time.

    def _one(self, kind: int, number: int, entry: Entry, extra: Any, payload: Payloads) -> None:
        if kind == ADD_SET:
            self.sets[extra] = entry.signature.ranks
            entry.result = extra
        elif kind == REMOVE_SET:
            for removed in extra:
                del self.sets[removed]
                self.groups.drop(str(removed))
        elif kind != BARRIER and entry.tensors:
            members = self.sets[number]
            group = None
            if payload is None and len(members) > 1:
                group = self.groups.get(str(number), members, entry.signature.device)
            rank = members.index(self.rank)
            parts = None if payload is None else [part for part in payload if part is not None]
            entry.result = MOVERS[kind](entry, group, parts, rank, members, extra)
        else:
            entry.result = []


def _combine_here(
    reduction: Reduction, pieces: list[Piece], parts: list[Sequence[bytes | None]], num_ranks: int
) -> None:
    """Reduce tensors whose bytes have arrived already: for each piece those of all ranks, None for the joined ones."""
    operation, prescale, postscale, _, dtype = reduction
    if len(pieces) == 1:
        (only,) = parts
        values = [from_bytes(part, dtype) for part in only if part is not None]
    else:
        by_rank = [own for own in zip(*parts, strict=True) if own[0] is not None]
        values = [from_bytes(b"".join(own), dtype) for own in by_rank]
    if prescale != 1.0:
        values = [reduce.scale(value, prescale) for value in values]
    sizes = [entry.tensors[position].numel() for entry, position in pieces]
    total = reduce.combine(values, operation, sizes)
    if operation == AVERAGE or postscale != 1.0:
        reduce.finish(total, operation, num_ranks, postscale)
    _hand_out(total, pieces, sizes)


def _reduction(signature: Signature, dtype: torch.dtype) -> Reduction:
    return Reduction(signature.operation, signature.prescale, signature.postscale, signature.device, dtype)


def _zeros(process_set: int, name: str, signature: Signature) -> Entry:
    """Make what a rank that has joined contributes to the others' reduction."""
    tensors = [
        torch.zeros(shape, dtype=TYPES[dtype], device=signature.device)
        for shape, dtype in zip(signature.shapes, signature.types, strict=True)
    ]
    return Entry(process_set, name, signature, tensors if signature.kind == ALLREDUCE else [], tensors)


def _hand_out(flat: Tensor, pieces: list[Piece], sizes: list[int]) -> None:
    """Copy a buffer's parts into the outputs, or make new ones."""
    if len(pieces) == 1:
        (entry, index) = pieces[0]
        tensor = entry.tensors[index]
        if entry.outputs is None:
            entry.result[index] = flat.to(tensor.dtype).view(tensor.shape)
        else:
            overwrite(entry.outputs[index], flat)
        return
    targets = []
    for entry, index in pieces:
        if entry.outputs is None:
            entry.result[index] = target = torch.empty_like(entry.tensors[index])
        else:
            target = entry.outputs[index]
            if target.requires_grad:
                target = target.detach()
        targets.append(target)
    parts = unflatten_dense_tensors(flat, [entry.tensors[index] for entry, index in pieces])
    torch._foreach_copy_(targets, parts)


def _names(pieces: list[Piece], timeline: Timeline) -> list[str]:
    return [entry.name for entry, _ in pieces] if timeline.active else []
