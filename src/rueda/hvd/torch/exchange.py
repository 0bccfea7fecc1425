"""The gradients of one optimizer on their way to the other workers and back.

In the first step each travels by its name. Then the ranks agree on an order (:mod:`rueda.hvd.torch.agreement`), and
from the second step on they travel in buckets, about which nothing is negotiated (:mod:`rueda.hvd.core.known_order`).
What is sparse goes on by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rueda.hvd.common.exceptions import HorovodInternalError
from rueda.hvd.common.process_sets import ProcessSet
from rueda.hvd.core import life
from rueda.hvd.core.known_order import KnownOrder, make_layout
from rueda.hvd.torch import mpi_ops as ops
from rueda.hvd.torch.agreement import agree_on_order
from rueda.hvd.torch.compression import Compressor
from rueda.hvd.torch.parameters import Named


class Exchange:
    """Sends gradients as they become final, and writes the reduced ones into ``parameter.grad``.

    Args:
        named: the parameters; a gradient is known by its parameter's number there.
        compression: how they travel.
        op: how they are combined.
        predivide: what they are divided by before, and multiplied by after.
        groups: numbers that travel together.
        sparse_as_dense: send sparse gradients as dense ones.
        process_set: among whom.
    """

    def __init__(
        self,
        named: Named,
        compression: type[Compressor],
        op: int,
        predivide: float,
        groups: list[list[int]],
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self.title = ""  # what all ranks call this optimizer
        self.named = named
        self._gradients = _Gradients(named.parameters)
        self.compression = compression
        self._op = op
        self._factors = (1.0 / predivide, predivide)
        self._groups = groups
        self._group_of = {number: group for group in groups for number in group}
        self._sparse_as_dense = sparse_as_dense
        self.process_set = process_set
        self._handles: dict[int, tuple[Any, Any]] = {}
        self._order: KnownOrder | None = None
        self._can_agree = True
        self._engine: Any = None

    def bind(self) -> None:
        """Belong to the engine that runs now: after shutdown and init everything is agreed on anew."""
        engine = life.engine()
        if engine is not self._engine:
            self._engine = engine
            self._order = None
            self._can_agree = self._op in (ops.Average, ops.Sum)
            number = self.process_set.process_set_id  # ranks outside a set do not count its optimizers
            self.title = engine.ledger.title(f"set {number} optimizer" if number else "optimizer")
        if self._order is not None and self._order.ended:  # this rank had joined
            self._order = None

    # While the backward pass runs.

    def send(self, number: int, finals: list[int]) -> None:
        """Send a gradient that is final: alone, with its bucket, or with its group if all of it is among ``finals``."""
        order = self._order
        if order is not None and number in order:
            order.ready(number, self._gradients)
        elif number not in self._group_of or all(n in finals for n in self._group_of[number]):
            self._submit(number)

    def _submit(self, number: int) -> None:
        """Send a gradient with its group, or alone as a group of one."""
        group = self._group_of.get(number, [number])
        gradients = [self._gradient(n) for n in group]
        if number not in self._group_of and gradients[0].is_sparse:
            sparse = ops.sparse_allreduce_async(gradients[0], self._label(number), self._op, self.process_set)
            self._handles[number] = (sparse, None)
            return
        compressed = [self.compression.compress(_dense(gradient)) for gradient in gradients]
        prescale, postscale = self._factors
        handle = ops.grouped_allreduce_async_(
            [small for small, _ in compressed], name=self._label(group[0]), op=self._op, prescale_factor=prescale,
            postscale_factor=postscale, process_set=self.process_set,
        )  # fmt: skip
        for n, (_, context) in zip(group, compressed, strict=True):
            self._handles[n] = (handle, context)

    def _gradient(self, number: int) -> Tensor:
        parameter = self.named.parameters[number]
        gradient = parameter.grad
        if gradient is None:
            return torch.zeros_like(parameter)
        return _dense(gradient) if self._sparse_as_dense else gradient.detach()

    def _label(self, number: int) -> str:
        prefix = "" if self.title == "optimizer.1" else f"{self.title}."
        return f"{prefix}allreduce.{self.named.names[number]}"

    # Between the backward pass and the update.

    def finish(self) -> bool:
        """Send the rest, and wait for all; gives whether this step knew no order, so that one can be agreed on.

        A parameter that only some ranks have used counts as zero on the others; one that no rank has used keeps no
        gradient.
        """
        self.bind()
        parameters = self.named.parameters
        order = self._order
        rest = [n for n in range(len(parameters)) if order is None or n not in order]
        present = [parameters[n].grad is not None for n in rest]
        presence = None
        if rest:
            flags = torch.tensor([*present], dtype=torch.int32)
            presence = ops.allreduce_async_(
                flags, name=f"{self.title}.present", op=ops.Sum, process_set=self.process_set
            )  # fmt: skip
            for number in rest:  # zeros for what this rank did not use: others may have
                if number not in self._handles:
                    self._submit(number)
        if order is not None:
            for number in order.finish(self._gradients):
                parameters[number].grad = order.result(number).to(parameters[number].dtype, copy=True)
            if order.ended:
                self._order = None
        if presence is not None:
            try:
                self._collect(rest, ops.synchronize(presence).tolist())
            finally:
                self._handles.clear()
        return order is None

    def _collect(self, rest: list[int], used_by: list[int]) -> None:
        results: dict[Any, Any] = {}
        for number, users in zip(rest, used_by, strict=True):
            handle, context = self._handles[number]
            if handle not in results:
                results[handle] = ops.synchronize(handle)
            result = results[handle]
            if isinstance(result, list):
                result = result[self._group_of.get(number, [number]).index(number)]
            parameter = self.named.parameters[number]
            if not users:
                continue
            value = result if result.is_sparse else self.compression.decompress(result, context)
            if parameter.grad is None or parameter.grad.is_sparse != value.is_sparse:
                parameter.grad = value.clone() if value.is_sparse else value.to(parameter.dtype)
            elif value.is_sparse:
                parameter.grad = value
            elif parameter.grad.data_ptr() != value.data_ptr():
                parameter.grad.detach().copy_(value)

    def agree(self, finals: list[int]) -> None:
        """Settle the order of the next steps; the ranks either all do or all do not."""
        if not self._can_agree:
            return
        try:
            order = agree_on_order(self.named, finals, f"{self.title}.order", self.process_set)
        except HorovodInternalError:  # somebody has joined: later, perhaps
            if self._engine.failure is not None:
                raise
            return
        if not order:  # all are sparse somewhere
            self._can_agree = False
            return
        agreed = set(order)
        like = [parameter.detach() for parameter in self.named.parameters]
        wire = [self.compression.wire_type or p.dtype if p.is_floating_point() else p.dtype for p in like]
        layout = make_layout(
            order, [(dtype, p.device) for dtype, p in zip(wire, like, strict=True)],
            [p.numel() * dtype.itemsize for dtype, p in zip(wire, like, strict=True)],
            [[n for n in group if n in agreed] for group in self._groups],
        )  # fmt: skip
        self._order = KnownOrder(
            self._engine, self._engine.ledger.title(f"{self.title} order"), self.process_set.process_set_id or 0,
            layout, like, self.compression.wire_type, self._op, *self._factors,
        )  # fmt: skip


class _Gradients(Sequence[Any]):
    """The gradients of parameters, by number, as they are when asked for."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self._parameters = parameters

    def __len__(self) -> int:
        return len(self._parameters)

    def __getitem__(self, number: Any) -> Any:
        parameter = self._parameters[number]
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse:
            gradient = parameter.grad = _dense(gradient)  # the order was made for dense ones
        return gradient


def _dense(gradient: Tensor) -> Tensor:
    return gradient.detach().to_dense() if gradient.is_sparse else gradient.detach()
