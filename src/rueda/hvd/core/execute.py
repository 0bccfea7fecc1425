"""Execution of the collectives that the coordinator has released, in the order of its responses.

That order is the same on every rank. An all-reduce is executed in one of three ways:

- *Inline*: the payloads of all ranks were small and came with the negotiation; each rank reduces them by itself, in
  rank order.
- *Fused*: tensors of the same dtype and operation are reduced together: in shared memory they are copied straight into
  this rank's slot and straight out of it, otherwise into one fusion buffer.
- *Alone*: a large tensor is reduced by the process group without a copy.

How repeated all-reduces are run (:mod:`rueda.hvd.core.repetitions`) is planned once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

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
from rueda.hvd.core.fusion import Batch, Layout, Plan, Reduction, divided, reduction_of
from rueda.hvd.core.messages import Payloads, Run, RunRepeated
from rueda.hvd.core.process_groups import OPERATIONS, ProcessGroups, ReducingTransfers, record_event, wait_for_event
from rueda.hvd.core.repetitions import KnownRepetitions
from rueda.hvd.core.timeline import Timeline
from rueda.world.shared_memory.operations import Fusion

Piece: TypeAlias = tuple[Entry, int]  # an entry and the index of one of its tensors
_NO_PHASE = nullcontext()
_NO_TENSORS: list[Tensor] = []
_MOST_PLANS = 64  # steps whose ranks are never in step have many


@dataclass(eq=False)
class Executor:
    """Runs the collectives of a response, and removes them from ``entries``, the table of the tensor queue."""

    rank: int
    device: torch.device
    sets: dict[int, tuple[int, ...]]
    entries: dict[Key, Entry]
    repetitions: KnownRepetitions
    groups: ProcessGroups
    fusion_bytes: int
    timeline: Timeline
    running: list[Entry] = field(default_factory=list)  # the collectives of the present response
    _plans: dict[RunRepeated, Plan] = field(default_factory=dict)

    def run(self, response: Run | RunRepeated) -> list[Entry]:
        """Run the collectives of a response and return their entries."""
        if self.groups.device is None:
            return self._run(response)
        with torch.cuda.device(self.groups.device):  # in a new thread, GPU 0 is current on every rank
            return self._run(response)

    def describe(self, response: Run | RunRepeated) -> str:
        """Return the kind and the names of the collectives of a response."""
        if isinstance(response, Run):
            return f"{KINDS[response.kind]} {response.names}"
        return f"{KINDS[ALLREDUCE]} {[each.key[2] for each in self.repetitions.meant_by(*response)]}"

    def _run(self, response: Run | RunRepeated) -> list[Entry]:
        table = self.entries
        execute: Callable[[], None]
        if isinstance(response, RunRepeated):
            plan = self._plans.get(response) or self._new_plan(response)
            kind, entries = ALLREDUCE, list(map(table.pop, plan.keys))
            execute = partial(self._reduce_planned, response.process_set, plan, entries)
        else:
            kind, process_set, names, extras, payloads, absent = response
            entries = [
                table.pop(key)
                if (key := (process_set, kind, name)) in table
                else self._zeros(process_set, name, absent)
                for name in names
            ]
            if kind == ALLREDUCE:
                execute = partial(self._allreduce, process_set, entries, payloads)
            else:
                execute = partial(self._run_each, kind, process_set, entries, extras, payloads)
        traced = [entry.name for entry in entries] if self.timeline.active else []
        if traced:
            self.timeline.begin(traced, KINDS[kind].upper())
        self.running = entries
        on_gpu = entries[0].event is not None
        try:
            if on_gpu:
                for entry in entries:
                    wait_for_event(entry.event)
            execute()
        except Exception:
            for entry in entries:  # the negotiation, which handles the error, ends all entries of the table with it
                self.entries[entry.key] = entry
            raise
        finally:
            self.running = []
            if traced:
                self.timeline.end(traced)
            for entry in entries:
                if on_gpu:
                    entry.event = record_event(entry.tensors)
                entry.tensors = _NO_TENSORS
        return entries

    # All-reduces, many at once.

    def _allreduce(self, process_set: int, entries: list[Entry], payloads: list[Payloads]) -> None:
        members = self.sets[process_set]
        _prepare_results(entries)
        if len(entries) == 1 and len(entries[0].tensors) == 1:
            (entry,), (payload,) = entries, payloads
            reduction = reduction_of(entry.signature, entry.tensors[0].dtype)
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
                reductions = [reduction_of(last, tensor.dtype) for tensor in entry.tensors]
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
            self._reduce_batches(reduction, pieces, process_set, members)

    def _reduce_batches(
        self, reduction: Reduction, pieces: list[Piece], process_set: int, members: tuple[int, ...]
    ) -> None:
        slot_bytes = self._slot_bytes(reduction, process_set, members) if len(pieces) > 1 else 0
        sizes = [entry.tensors[index].nbytes for entry, index in pieces]
        begun = []
        for positions in divided(sizes, min(self.fusion_bytes, slot_bytes or self.fusion_bytes)):
            batch = [pieces[position] for position in positions]
            if slot_bytes and len(batch) > 1:
                layout = Layout([entry.tensors[index].shape for entry, index in batch])
                begun.append(self._begin_in_slot(reduction, batch, layout, process_set, members))
            else:
                self._reduce_in_group(reduction, batch, process_set, members)
        for transfer in begun:
            transfer.wait()

    # Repetitions.

    def _new_plan(self, response: RunRepeated) -> Plan:
        process_set, bits = response
        members = self.sets[process_set]
        repetitions = self.repetitions.meant_by(process_set, bits)
        by_reduction: dict[Reduction, list[int]] = {}
        for position, (_, signature, _) in enumerate(repetitions):
            if len(signature.types) == 1:
                reduction = reduction_of(signature, getattr(torch, signature.types[0]))
                by_reduction.setdefault(reduction, []).append(position)
        batches: list[Batch] = []
        for reduction, positions in by_reduction.items():
            shapes = [repetitions[position].signature.shapes[0] for position in positions]
            slot_bytes = self._slot_bytes(reduction, process_set, members)
            sizes = [torch.Size(shape).numel() * reduction.dtype.itemsize for shape in shapes]
            for chosen in divided(sizes, min(self.fusion_bytes, slot_bytes)) if slot_bytes else ():
                layout = Layout([shapes[number] for number in chosen])
                batches.append(Batch(reduction, [positions[number] for number in chosen], layout))
        if len(self._plans) == _MOST_PLANS:
            self._plans.clear()
        plan = self._plans[response] = Plan([key for key, _, _ in repetitions], batches)
        return plan

    def _reduce_planned(self, process_set: int, plan: Plan, entries: list[Entry]) -> None:
        if sum([len(batch.positions) for batch in plan.batches]) < len(entries):  # not all can be reduced in the slot
            self._allreduce(process_set, entries, [None] * len(entries))
            return
        members = self.sets[process_set]
        _prepare_results(entries)
        begun = []
        for reduction, positions, layout in plan.batches:
            pieces = [(entries[position], 0) for position in positions]
            if len(pieces) > 1:
                begun.append(self._begin_in_slot(reduction, pieces, layout, process_set, members))
            else:
                self._reduce_in_group(reduction, pieces, process_set, members)
        for transfer in begun:
            transfer.wait()

    # In shared memory.

    def _slot_bytes(self, reduction: Reduction, process_set: int, members: tuple[int, ...]) -> int:
        """Return how many bytes can be reduced at once where this rank's slot is the fusion buffer; 0 if it is not."""
        operation, _, _, device, dtype = reduction
        if len(members) == 1 or operation == ADASUM or reduce.communication_dtype(dtype, operation) != dtype:
            return 0
        group = self.groups.get(str(process_set), members, device)
        if not isinstance(group, ReducingTransfers):
            return 0
        return group.fused_bytes(dtype, OPERATIONS[reduce.communication_operation(dtype, operation)])

    def _begin_in_slot(
        self, reduction: Reduction, pieces: list[Piece], layout: Layout, process_set: int, members: tuple[int, ...]
    ) -> Any:
        operation, prescale, postscale, device, dtype = reduction
        timeline = self.timeline
        names = [entry.name for entry, _ in pieces] if timeline.active else []

        def fill(slot: Tensor) -> None:
            with self._phase(pieces, "COPY_INTO_FUSION_BUFFER"):
                layout.fill(slot, [entry.tensors[index] for entry, index in pieces])
                reduce.scale(slot, prescale)
            timeline.begin(names, "GROUP_ALLREDUCE")

        def finish(part: Tensor) -> None:
            reduce.finish(part, operation, len(members), postscale)

        def take(total: Tensor) -> None:
            timeline.end(names)
            with self._phase(pieces, "COPY_OUT_OF_FUSION_BUFFER"):
                layout.take(total, _targets(pieces))

        group = self.groups.get(str(process_set), members, device)
        group_operation = OPERATIONS[reduce.communication_operation(dtype, operation)]
        return group.fused_allreduce(layout.num_elements, dtype, group_operation, Fusion(fill, finish, take))

    # In a process group, or inline.

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
        if len(pieces) == 1 and prescale == 1.0 and self._slot_bytes(reduction, process_set, members):
            self._reduce_without_copy(reduction, pieces, process_set, members)
            return
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

    def _reduce_without_copy(
        self, reduction: Reduction, pieces: list[Piece], process_set: int, members: tuple[int, ...]
    ) -> None:
        """Reduce one tensor in shared memory, in place or straight into a new one."""
        operation, _, postscale, device, dtype = reduction
        ((entry, index),) = pieces
        tensor = entry.tensors[index]
        result = tensor if entry.outputs is not None else torch.empty_like(tensor)
        with self._phase(pieces, "GROUP_ALLREDUCE"):
            group = self.groups.get(str(process_set), members, device)
            group_operation = OPERATIONS[reduce.communication_operation(dtype, operation)]
            group.allreduce_into(
                result, tensor, group_operation,
                lambda part: reduce.finish(part, operation, len(members), postscale),
            )  # fmt: skip
        if entry.outputs is None:
            entry.result[index] = result
        else:
            overwrite(entry.outputs[index], result)

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

    # Other kinds, one at a time.

    def _run_each(
        self, kind: int, process_set: int, entries: list[Entry], extras: list[Any], payloads: list[Payloads]
    ) -> None:
        for entry, extra, payload in zip(entries, extras, payloads, strict=True):
            self._run_one(kind, process_set, entry, extra, payload)

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
                self._plans.clear()  # they have views of its memory
                self.groups.close_group(str(removed))
        elif entry.tensors:
            members = self.sets[process_set]
            group = None
            if payload is None and len(members) > 1:
                group = self.groups.get(str(process_set), members, entry.signature.device)
            rank = members.index(self.rank)
            parts = None if payload is None else [part for part in payload if part is not None]
            entry.result = COLLECTIVES[kind](entry, group, parts, rank, members, extra)


def _prepare_results(entries: list[Entry]) -> None:
    for entry in entries:
        entry.result = entry.outputs if entry.outputs is not None else [None] * len(entry.tensors)


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
    parts = unflatten_dense_tensors(flat, [entry.tensors[index] for entry, index in pieces])
    torch._foreach_copy_(_targets(pieces), parts)


def _targets(pieces: list[Piece]) -> list[Tensor]:
    """Return the outputs of entries, or the new tensors that are their results."""
    targets = []
    for entry, index in pieces:
        if entry.outputs is None:
            entry.result[index] = target = torch.empty_like(entry.tensors[index])
        else:
            target = entry.outputs[index]
            if target.requires_grad:
                target = target.detach()
        targets.append(target)
    return targets
