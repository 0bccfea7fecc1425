"""Execution of the collectives that the coordinator has released, in the order of its responses.

That order is the same on every rank. An all-reduce is executed in one of three ways:

- *Inline*: the payloads of all ranks were small and came with the negotiation; each rank reduces them by itself, in
  rank order.
- *Fused*: tensors of the same dtype and operation are copied into one fusion buffer and reduced together.
- *Alone*: a large tensor is reduced by the process group without a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch._C._nn import flatten_dense_tensors, unflatten_dense_tensors

from rueda.hvd.core import adasum, reduce
from rueda.hvd.core.collectives import COLLECTIVES, overwrite
from rueda.hvd.core.entries import (
    ADASUM,
    ADD_SET,
    ALLREDUCE,
    AVERAGE,
    JOIN,
    KINDS,
    REMOVE_SET,
    Entry,
    Key,
    Signature,
    from_bytes,
)  # fmt: skip
from rueda.hvd.core.messages import Payloads, Run
from rueda.hvd.core.process_groups import OPERATIONS, ProcessGroups, record_event, wait_for_event
from rueda.hvd.core.timeline import Timeline

Piece: TypeAlias = tuple[Entry, int]  # an entry and the index of one of its tensors
_NO_PHASE = nullcontext()


class Reduction(NamedTuple):
    """The properties that tensors must share to be reduced in one buffer."""

    operation: int
    prescale: float
    postscale: float
    device: str
    dtype: torch.dtype


@dataclass(eq=False)
class Executor:
    """Runs the collectives of a response, and removes them from ``entries``, the table of the tensor queue."""

    rank: int
    device: torch.device
    sets: dict[int, tuple[int, ...]]
    entries: dict[Key, Entry]
    groups: ProcessGroups
    fusion_bytes: int
    timeline: Timeline
    running: list[Entry] = field(default_factory=list)  # the collectives of the present response

    def run(self, response: Run) -> list[Entry]:
        """Run the collectives of a response and return their entries."""
        if self.groups.device is None:
            return self._run(response)
        with torch.cuda.device(self.groups.device):  # in a new thread, GPU 0 is current on every rank
            return self._run(response)

    def _run(self, response: Run) -> list[Entry]:
        kind, process_set, names, extras, payloads, absent = response
        table = self.entries
        entries = [
            table.pop(key) if (key := (process_set, kind, name)) in table else self._zeros(process_set, name, absent)
            for name in names
        ]
        if self.timeline.active:
            self.timeline.begin(names, KINDS[kind].upper())
        self.running = entries
        try:
            if entries[0].event is not None:
                for entry in entries:
                    wait_for_event(entry.event)
            if kind == ALLREDUCE:
                self._allreduce(process_set, entries, payloads)
            else:
                for entry, extra, payload in zip(entries, extras, payloads, strict=True):
                    self._run_one(kind, process_set, entry, extra, payload)
        except Exception:
            for entry in entries:  # the negotiation, which handles the error, ends all entries of the table with it
                self.entries[entry.key] = entry
            raise
        finally:
            self.running = []
            if self.timeline.active:
                self.timeline.end(names)
            on_gpu = entries[0].event is not None
            for entry in entries:
                if on_gpu:
                    entry.event = record_event(entry.tensors)
                entry.tensors = []
        return entries

    # All-reduces, many at once.

    def _allreduce(self, process_set: int, entries: list[Entry], payloads: list[Payloads]) -> None:
        members = self.sets[process_set]
        for entry in entries:
            entry.result = entry.outputs if entry.outputs is not None else [None] * len(entry.tensors)
        if len(entries) == 1 and len(entries[0].tensors) == 1:
            (entry,), (payload,) = entries, payloads
            reduction = _reduction(entry.signature, entry.tensors[0].dtype)
            if payload is not None:
                self._reduce_inline(reduction, [(entry, 0)], [payload], len(members))
            else:
                self._reduce_in_group(reduction, [(entry, 0)], process_set, members)
            return
        inline: dict[tuple[Reduction, tuple[bool, ...]], tuple[list[Piece], list[Sequence[bytes | None]]]] = {}
        in_group: dict[Reduction, list[Piece]] = {}
        last: Signature | None = None
        for entry, payload in zip(entries, payloads, strict=True):
            if entry.signature is not last:  # many entries share a signature
                last = entry.signature
                reductions = [_reduction(last, tensor.dtype) for tensor in entry.tensors]
                lists = [in_group.setdefault(reduction, []) for reduction in reductions]
            if payload is None:
                for index, pieces in enumerate(lists):
                    pieces.append((entry, index))
                continue
            absent = tuple([part is None for part in payload])  # tensors are combined only if the same ranks are absent
            start = 0
            for index, reduction in enumerate(reductions):
                end = start + entry.tensors[index].nbytes
                pieces, parts = inline.setdefault((reduction, absent), ([], []))
                pieces.append((entry, index))
                parts.append([None if part is None else part[start:end] for part in payload])
                start = end
        for (reduction, _), (pieces, parts) in inline.items():
            self._reduce_inline(reduction, pieces, parts, len(members))
        for reduction, pieces in in_group.items():
            for batch in self._batches(pieces):
                self._reduce_in_group(reduction, batch, process_set, members)

    def _reduce_inline(
        self, reduction: Reduction, pieces: list[Piece], parts: list[Sequence[bytes | None]], num_ranks: int
    ) -> None:
        """Reduce tensors from ``parts``, which has for each piece the bytes of all ranks, None for joined ones."""
        operation, prescale, postscale, _, dtype = reduction
        with self._phase(pieces, "INLINE_ALLREDUCE"):
            if len(pieces) == 1:
                (only,) = parts
                values = [from_bytes(part, dtype) for part in only if part is not None]
            else:
                by_rank = [own for own in zip(*parts, strict=True) if own[0] is not None]
                values = [from_bytes(b"".join(own), dtype) for own in by_rank]
            if prescale != 1.0:
                values = [reduce.scale(value, prescale) for value in values]
            sizes = [entry.tensors[index].numel() for entry, index in pieces]
            total = reduce.combine(values, operation, sizes)
            if operation == AVERAGE or postscale != 1.0:
                reduce.finish(total, operation, num_ranks, postscale)
            _copy_out(total, pieces)

    def _reduce_in_group(
        self, reduction: Reduction, pieces: list[Piece], process_set: int, members: tuple[int, ...]
    ) -> None:
        operation, prescale, postscale, device, dtype = reduction
        communicated = reduce.communication_dtype(dtype, operation)
        tensors = [entry.tensors[index] for entry, index in pieces]
        with self._phase(pieces, "COPY_INTO_FUSION_BUFFER"):
            if len(pieces) > 1:
                flat = flatten_dense_tensors(tensors).to(communicated)
            elif communicated != dtype:
                flat = tensors[0].view(-1).to(communicated)
            else:
                ((first, _),) = pieces
                # An in-place all-reduce needs no buffer; others must not change their input.
                flat = tensors[0].view(-1) if first.outputs is not None else tensors[0].view(-1).clone()
            reduce.scale(flat, prescale)
        if len(members) > 1:
            with self._phase(pieces, "GROUP_ALLREDUCE"):
                group = self.groups.get(str(process_set), members, device)
                if operation == ADASUM:
                    sizes = [tensor.numel() for tensor in tensors]
                    flat = adasum.allreduce(group, members.index(self.rank), len(members), flat, sizes)
                else:
                    group.allreduce([flat], OPERATIONS[reduce.communication_operation(dtype, operation)]).wait()
        reduce.finish(flat, operation, len(members), postscale)
        with self._phase(pieces, "COPY_OUT_OF_FUSION_BUFFER"):
            _copy_out(flat, pieces)

    def _zeros(self, process_set: int, name: str, absent: dict[str, tuple[Any, ...]]) -> Entry:
        """Make the entry by which a rank that has joined contributes zeros to an all-reduce."""
        signature = Signature._make(absent[name])
        device = self.device if self.device.type == signature.device else signature.device
        tensors = [
            torch.zeros(shape, dtype=getattr(torch, dtype), device=device)
            for shape, dtype in zip(signature.shapes, signature.types, strict=True)
        ]
        return Entry(process_set, name, signature, tensors if signature.kind == ALLREDUCE else [], tensors)

    def _phase(self, pieces: list[Piece], what: str) -> AbstractContextManager[None]:
        return self.timeline.phase([entry.name for entry, _ in pieces], what) if self.timeline.active else _NO_PHASE

    def _batches(self, pieces: list[Piece]) -> Iterable[list[Piece]]:
        """Divide pieces into batches that fit into the fusion buffer; a larger piece is a batch of its own."""
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

    # Other kinds, one at a time.

    def _run_one(self, kind: int, process_set: int, entry: Entry, extra: Any, payload: Payloads) -> None:
        entry.result = []
        if kind == JOIN:
            entry.result = extra
        elif kind == ADD_SET:
            self.sets[extra] = entry.signature.ranks
            entry.result = extra
        elif kind == REMOVE_SET:
            for removed in extra:
                del self.sets[removed]
                self.groups.close_group(str(removed))
        elif entry.tensors:
            members = self.sets[process_set]
            group = None
            if payload is None and len(members) > 1:
                group = self.groups.get(str(process_set), members, entry.signature.device)
            rank = members.index(self.rank)
            parts = None if payload is None else [part for part in payload if part is not None]
            entry.result = COLLECTIVES[kind](entry, group, parts, rank, members, extra)


def _reduction(signature: Signature, dtype: torch.dtype) -> Reduction:
    return Reduction(signature.operation, signature.prescale, signature.postscale, signature.device, dtype)


def _copy_out(flat: Tensor, pieces: list[Piece]) -> None:
    """Copy the parts of a buffer into the outputs of entries, or into new tensors."""
    if len(pieces) == 1:
        ((entry, index),) = pieces
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
