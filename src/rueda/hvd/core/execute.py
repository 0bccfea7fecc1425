"""Running what the coordinator has released, in the order of its responses, which is the same on every rank.

Three ways for the data:

- *Ride*: payloads so small that they came with the negotiation are already here, those of all ranks; each rank combines
  them by itself, in rank order.
- *Fusion*: tensors of one type and operation are copied into one buffer and travel as one.
- *Alone*: a large tensor goes through the process group as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
from rueda.hvd.core.movers import MOVERS, overwrite
from rueda.hvd.core.timeline import Timeline

Piece = tuple[Entry, int]  # an entry and the number of one of its tensors
Payloads = list[bytes | None] | None


class Executor:
    """Runs responses. ``entries`` is the ledger's table, from which finished ones are taken."""

    def __init__(
        self,
        rank: int,
        sets: dict[int, tuple[int, ...]],
        entries: dict[Key, Entry],
        groups: Groups,
        fusion_bytes: int,
        timeline: Timeline,
    ) -> None:
        self.rank = rank
        self.sets = sets
        self.entries = entries
        self.groups = groups
        self.fusion_bytes = fusion_bytes
        self.timeline = timeline

    def run(
        self,
        kind: int,
        number: int,
        names: list[str],
        extras: list[Any],
        payloads: list[Payloads],
        absent: list[Signature | None],
    ) -> list[Entry]:
        """Run one response; gives the entries that are finished."""
        table = self.entries
        entries = [
            table.pop((number, name)) if (number, name) in table else _ghost((number, name), signature)
            for name, signature in zip(names, absent, strict=True)
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
            settings = _settings(entries[0], 0)
            if payloads[0] is not None:
                self._ride(settings, [(entries[0], 0)], [payloads[0]], len(members))
            else:
                self._travel(settings, [(entries[0], 0)], number, members)
            return
        riding: dict[Any, list[tuple[Entry, int, int, Payloads]]] = {}
        travelling: dict[Any, list[Piece]] = {}
        last: Signature | None = None
        for entry, payload in zip(entries, payloads, strict=True):
            if payload is None and len(entry.tensors) == 1:  # the usual case: many of them, signed alike
                if entry.signature is not last:
                    last = entry.signature
                    usual = travelling.setdefault(_settings(entry, 0), [])
                usual.append((entry, 0))
                continue
            start = 0
            for index, tensor in enumerate(entry.tensors):
                settings = _settings(entry, index)
                if payload is None:
                    travelling.setdefault(settings, []).append((entry, index))
                else:
                    # Who is absent must be absent from all that are combined at once.
                    gaps = tuple(part is None for part in payload)
                    end = start + tensor.numel() * tensor.element_size()
                    parts = [None if part is None else part[start:end] for part in payload]
                    riding.setdefault((*settings, gaps), []).append((entry, index, end, parts))
                    start = end
        for settings, rides in riding.items():
            self._ride(settings[:-1], [ride[:2] for ride in rides], [ride[3] for ride in rides], len(members))
        for settings, pieces in travelling.items():
            for batch in self._batches(pieces):
                self._travel(settings, batch, number, members)

    def _ride(self, settings: Any, pieces: list[Piece], payloads: list[Any], num_ranks: int) -> None:
        if self.timeline.active:
            with self.timeline.phase(_names(pieces, self.timeline), "RIDE"):
                _combine_here(settings, pieces, payloads, num_ranks)
        else:
            _combine_here(settings, pieces, payloads, num_ranks)

    def _travel(self, settings: Any, pieces: list[Piece], number: int, members: tuple[int, ...]) -> None:
        operation, prescale, postscale, device, dtype = settings
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
                # In place the tensor is the buffer, unless it had to be made contiguous or is a ghost's.
                flat = tensors[0].view(-1) if pieces[0][0].outputs is not None else tensors[0].view(-1).clone()
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
            own = piece[0].tensors[piece[1]]
            own_bytes = own.numel() * own.element_size()
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
            self.sets[extra] = entry.signature[7][0]
            entry.result = extra
        elif kind == REMOVE_SET:
            removed = entry.signature[7][0][0]
            self.sets.pop(removed, None)
            self.groups.drop(str(removed))
        elif kind != BARRIER and entry.tensors:
            members = self.sets[number]
            group = None
            if payload is None and len(members) > 1:
                group = self.groups.get(str(number), members, entry.signature[5])
            rank = members.index(self.rank)
            parts = None if payload is None else [part for part in payload if part is not None]
            entry.result = MOVERS[kind](entry, group, parts, rank, members, extra)
        else:
            entry.result = []


def _combine_here(settings: Any, pieces: list[Piece], payloads: list[Any], num_ranks: int) -> None:
    """Reduce the payloads of all ranks that lie here already."""
    operation, prescale, postscale, _, dtype = settings
    if len(payloads) == 1:
        parts = [from_bytes(part, dtype) for part in payloads[0] if part is not None]
    else:
        present = [rank for rank in range(num_ranks) if payloads[0][rank] is not None]
        parts = [from_bytes(b"".join([payload[rank] for payload in payloads]), dtype) for rank in present]
    if prescale != 1.0:
        parts = [reduce.scale(part, prescale) for part in parts]
    sizes = [entry.tensors[index].numel() for entry, index in pieces]
    total = reduce.combine(parts, operation, sizes)
    if operation == AVERAGE or postscale != 1.0:
        reduce.finish(total, operation, num_ranks, postscale)
    _hand_out(total, pieces, sizes)


def _settings(entry: Entry, index: int) -> tuple[int, float, float, str, torch.dtype]:
    signature = entry.signature
    return signature[1], signature[3], signature[4], signature[5], entry.tensors[index].dtype


def _ghost(key: Key, signature: Signature | None) -> Entry:
    """Make what a joined rank contributes: zeros."""
    assert signature is not None, f"{key} was released, but neither submitted here nor described"
    shapes, types, device = signature[7], signature[6], signature[5]
    tensors = [torch.zeros(shape, dtype=TYPES[name], device=device) for shape, name in zip(shapes, types, strict=True)]
    return Entry(key, signature, tensors if signature[0] == ALLREDUCE else [], tensors)


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
    return [entry.key[1] for entry, _ in pieces] if timeline.active else []
