"""The all-reduce of one optimizer's gradients while the backward pass is still running.

In the first step each gradient is reduced under its parameter's name. Then the ranks agree on an order
(:mod:`rueda.hvd.torch.gradient_order`), and from the second step on gradients are reduced in buckets without
negotiation (:mod:`rueda.hvd.core.bucket_reducer`). Sparse gradients are always reduced by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rueda.hvd.common.exceptions import HorovodInternalError
from rueda.hvd.common.process_sets import ProcessSet
from rueda.hvd.core import lifecycle
from rueda.hvd.core.bucket_reducer import BucketReducer, assign_buckets
from rueda.hvd.torch import mpi_ops as ops
from rueda.hvd.torch.compression import Compression, Compressor
from rueda.hvd.torch.gradient_order import agree_on_order
from rueda.hvd.torch.parameters import NamedParameters


@dataclass(eq=False)
class GradientReducer:
    """Submits gradients as they become final, and writes the reduced ones into ``parameter.grad``.

    Args:
        named: the parameters; a gradient is identified by its parameter's number there.
        compression: the compression of the transfer.
        op: the reduction operation.
        predivide: gradients are divided by it before the reduction and multiplied by it afterwards.
        groups: lists of numbers whose gradients are reduced together.
        sparse_as_dense: reduce sparse gradients as dense ones, which become sparse again afterwards.
        process_set: the ranks that take part.
    """

    named: NamedParameters
    compression: type[Compressor]
    op: int
    predivide: float
    groups: list[list[int]]
    sparse_as_dense: bool
    process_set: ProcessSet

    def __post_init__(self) -> None:
        self.name = ""  # the name of this optimizer, the same on all ranks
        self._factors = (1.0 / self.predivide, self.predivide)
        self._group_of = {number: group for group in self.groups for number in group}
        self._handles: dict[int, tuple[Any, int, Any]] = {}  # handle, place among its results, compression context
        self._sparse_dims: dict[int, int] = {}  # of the gradients that were sparse and have been reduced as dense ones
        self._buckets: BucketReducer | None = None
        self._can_agree = True
        self._engine: Any = None

    def bind(self) -> None:
        """Attach to the running engine; after ``shutdown()`` and ``init()`` the ranks agree on an order again."""
        engine = lifecycle.engine()
        if engine is not self._engine:
            self._engine = engine
            self._buckets = None
            # Buckets convert dtypes by themselves and would bypass a compression of the user's own.
            known = self.compression in (Compression.none, Compression.fp16, Compression.bf16)
            self._can_agree = known and self.op in (ops.Average, ops.Sum)
            number = self.process_set.process_set_id  # optimizers are counted within their process set
            self.name = engine.tensor_queue.unique_name(f"set {number} optimizer" if number else "optimizer")
        if self._buckets is not None and self._buckets.ended:  # this rank had joined
            self._buckets = None

    def discard(self) -> None:
        """Forget the gradients of a step that was interrupted."""
        self._handles.clear()
        self._sparse_dims.clear()

    # While the backward pass runs.

    def send(self, number: int, finals: list[int]) -> None:
        """Submit a final gradient: in its bucket, alone, or with its group once the whole group is in ``finals``."""
        buckets = self._buckets
        if self._sparse_dims and not self.named.parameters[number].grad.is_sparse:  # type: ignore[union-attr]
            self._sparse_dims.pop(number, None)
        if buckets is not None and number in buckets:
            buckets.ready(number, self._dense_gradient)
        elif number not in self._group_of or all(n in finals for n in self._group_of[number]):
            self._submit(number)

    def _submit(self, number: int) -> None:
        """Start the all-reduce of a gradient and of its group; a gradient without a group is a group of one."""
        group = self._group_of.get(number, [number])
        gradients = [self._gradient(n) for n in group]
        if number not in self._group_of and gradients[0].is_sparse:
            sparse = ops.sparse_allreduce_async(gradients[0], self._label(number), self.op, self.process_set)
            self._handles[number] = (sparse, 0, None)
            return
        compressed = [self.compression.compress(_dense(gradient)) for gradient in gradients]
        prescale, postscale = self._factors
        handle = ops.grouped_allreduce_async_(
            [small for small, _ in compressed], name=self._label(group[0]), op=self.op, prescale_factor=prescale,
            postscale_factor=postscale, process_set=self.process_set,
        )  # fmt: skip
        for place, n in enumerate(group):
            self._handles[n] = (handle, place, compressed[place][1])

    def _gradient(self, number: int) -> Tensor:
        parameter = self.named.parameters[number]
        gradient = parameter.grad
        if gradient is None:
            return torch.zeros_like(parameter)
        if gradient.is_sparse and self.sparse_as_dense:
            self._sparse_dims[number] = gradient.sparse_dim()
            return _dense(gradient)
        return gradient.detach()

    def _dense_gradient(self, number: int) -> Tensor | None:
        parameter = self.named.parameters[number]
        if parameter.grad is not None and parameter.grad.is_sparse:  # the buckets are laid out for dense gradients
            self._sparse_dims[number] = parameter.grad.sparse_dim()
            parameter.grad = _dense(parameter.grad)
        return parameter.grad

    def _label(self, number: int) -> str:
        prefix = "" if self.name == "optimizer.1" else f"{self.name}."
        return f"{prefix}allreduce.{self.named.names[number]}"

    # Between the backward pass and the update.

    def finish(self) -> bool:
        """Submit the remaining gradients and wait for all; return whether this step used no buckets."""
        self.bind()
        parameters, buckets = self.named.parameters, self._buckets
        rest = [n for n in range(len(parameters)) if buckets is None or n not in buckets]
        for number in rest:  # zeros for the parameters that this rank did not use, since others may have used them
            if number not in self._handles:
                self._submit(number)
        if buckets is not None:
            for number in buckets.finish(self._dense_gradient):
                parameters[number].grad = buckets.result(number).to(parameters[number].dtype, copy=True)
        try:
            self._collect(rest)
        finally:
            self._handles.clear()
        for number, dim in self._sparse_dims.items():
            gradient = parameters[number].grad
            if gradient is not None and not gradient.is_sparse:
                parameters[number].grad = gradient.to_sparse(dim)
        return buckets is None

    def _collect(self, rest: list[int]) -> None:
        results: dict[Any, Any] = {}
        for number in rest:
            handle, place, context = self._handles[number]
            if handle not in results:
                results[handle] = ops.synchronize(handle)
            parameter = self.named.parameters[number]
            if callable(handle):  # of a sparse gradient
                parameter.grad = results[handle]
                continue
            value = self.compression.decompress(results[handle][place], context)
            if parameter.grad is None or parameter.grad.is_sparse:
                parameter.grad = value.to(parameter.dtype)
            elif parameter.grad.data_ptr() != value.data_ptr():
                parameter.grad.detach().copy_(value)

    def _sparse(self) -> list[int]:
        """Return the numbers of the gradients that cannot be reduced in buckets."""
        gradients = [] if self.sparse_as_dense else [parameter.grad for parameter in self.named.parameters]
        return [n for n, gradient in enumerate(gradients) if gradient is not None and gradient.is_sparse]

    def agree(self, finals: list[int]) -> None:
        """Agree with the other ranks on the order of the next steps' gradients; either all ranks do or none does."""
        if not self._can_agree:
            return
        num_replayed = self._engine.num_replayed
        try:
            order = agree_on_order(self.named, finals, self._sparse(), f"{self.name}.order", self.process_set)
        except HorovodInternalError:  # a rank has joined: the next step tries again
            if self._engine.failure is not None:
                raise
            return
        if self._engine.num_replayed > num_replayed:  # before elastic.run, in which the others are
            return
        if not order:  # every gradient is sparse on some rank
            self._can_agree = False
            return
        agreed = set(order)
        like = [parameter.detach() for parameter in self.named.parameters]
        transfer = self.compression.transfer_dtype
        dtypes = [transfer if transfer and p.is_floating_point() else p.dtype for p in like]
        layout = assign_buckets(
            order, [(dtype, p.device) for dtype, p in zip(dtypes, like, strict=True)],
            [p.numel() * dtype.itemsize for dtype, p in zip(dtypes, like, strict=True)],
            [[n for n in group if n in agreed] for group in self.groups],
        )  # fmt: skip
        self._buckets = BucketReducer(
            self._engine, self._engine.tensor_queue.unique_name(f"{self.name} order"),
            self.process_set.process_set_id or 0, layout, like, dtypes, self.op, *self._factors,
        )  # fmt: skip


def _dense(gradient: Tensor) -> Tensor:
    return gradient.detach().to_dense() if gradient.is_sparse else gradient.detach()
