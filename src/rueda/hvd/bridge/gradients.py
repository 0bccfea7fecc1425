"""The all-reduce of one step's gradients, for the frameworks that hand them over all at once.

The interface for torch reduces a gradient as soon as the backward pass has computed it. The other frameworks call the
host once a step, with all gradients. In the first step they are one collective, under one name, which the ranks
negotiate: a difference between them raises an error. From then on they are reduced in fixed buckets, without
negotiation (:mod:`rueda.hvd.core.bucket_reducer`), as long as their shapes stay the same.

A sparse gradient (``tf.IndexedSlices``) is a pair of values and indices. The pairs of all ranks are gathered and the
values divided by the number of ranks, so that rows that occur several times are summed where they are applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rueda.hvd.common.exceptions import HorovodInternalError
from rueda.hvd.common.process_sets import ProcessSet, global_process_set, may_exchange
from rueda.hvd.core import lifecycle
from rueda.hvd.core.bucket_reducer import BucketReducer, assign_buckets
from rueda.hvd.core.entries import AVERAGE, SUM
from rueda.hvd.torch.collective_entries import Reduction, allgather_entry, allreduce_entry, run
from rueda.hvd.torch.compression import Compression, Compressor
from rueda.hvd.torch.functions import allgather_object


@dataclass(eq=False)
class GradientExchange:
    """Reduces the gradients of a step over the workers; a function of torch tensors for a bridge's ``host_call``.

    Args:
        name: the name of the collective, the same on all ranks; exchanges of one name are counted.
        op: the reduction operation.
        predivide: with Average, gradients are divided by this factor before the sum and by the number of workers over
            this factor after it.
        compression: the compression of dense gradients while they are sent.
        process_set: the ranks that take part.

    Raises:
        ValueError: a predivide factor was given with another operation than Average.
    """

    name: str
    op: int = AVERAGE
    predivide: float = 1.0
    compression: type[Compressor] = Compression.none
    process_set: ProcessSet = field(default_factory=lambda: global_process_set)

    def __post_init__(self) -> None:
        if self.predivide != 1.0 and self.op != AVERAGE:
            raise ValueError("gradient_predivide_factor: expected op Average with it, got another; leave it at 1.0")
        if not self.predivide > 0:
            raise ValueError(f"gradient_predivide_factor: expected more than 0, got {self.predivide}; correct it")
        self._engine: Any = None
        self._label = ""
        self._buckets: BucketReducer | None = None
        self._shapes: list[Any] = []  # shapes and types of the gradients in the buckets
        # Buckets convert dtypes by themselves and would bypass a compression of the user's own.
        known = self.compression in (Compression.none, Compression.fp16, Compression.bf16)
        self._can_agree = known and self.op in (AVERAGE, SUM)

    @property
    def alone(self) -> bool:
        """Whether there is nobody to exchange with; a rank outside the process set trains by itself, as in Horovod.

        A worker of an elastic job may get company while a compiled function, once traced, is used again and again.
        """
        return not may_exchange(self.process_set)

    def __call__(self, tensors: Sequence[Tensor], num_sparse: int = 0) -> list[Tensor]:
        """Return the reduced gradients as new tensors.

        Args:
            tensors: dense gradients, then values and indices of each sparse one in turn.
            num_sparse: the number of sparse gradients.
        """
        engine = lifecycle.engine()
        if engine is not self._engine:  # the first step, or the first after shutdown() and init()
            self._engine, self._label = engine, engine.tensor_queue.unique_name(self.name)
            self._buckets = None
        num_dense = len(tensors) - 2 * num_sparse
        # In an elastic job, until others come; these get what its prelude has sent, even if it was alone then.
        if self.process_set.size() == 1 and not engine.in_prelude:
            return [tensor.clone() for tensor in tensors]
        with torch.no_grad():
            return self._dense(tensors[:num_dense]) + self._sparse(tensors[num_dense:])

    def _dense(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        if not gradients:
            return []
        shapes = [(gradient.shape, gradient.dtype, gradient.device) for gradient in gradients]
        if self._buckets is not None and self._buckets.ended:  # a rank had joined
            self._buckets = None
        if self._buckets is not None and shapes == self._shapes:
            return self._in_buckets(gradients, self._buckets)
        results = self._negotiated(gradients)
        if self._can_agree and self._buckets is None:
            self._agree(gradients)
            self._shapes = shapes
        return results

    def _in_buckets(self, gradients: Sequence[Tensor], buckets: BucketReducer) -> list[Tensor]:
        results = [torch.empty_like(gradient) for gradient in gradients]
        for number in range(len(gradients)):
            buckets.ready(number, lambda n: gradients[n])
        buckets.finish(lambda n: results[n])
        return results

    def _negotiated(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        compressed = [self.compression.compress(gradient) for gradient in gradients]
        reduction = Reduction(self.process_set, self.op, 1.0 / self.predivide, self.predivide)
        results = run(allreduce_entry([small for small, _ in compressed], self._label, reduction))
        return [
            self.compression.decompress(result, context)
            for result, (_, context) in zip(results, compressed, strict=True)
        ]

    def _agree(self, gradients: Sequence[Tensor]) -> None:
        """Lay out the buckets, unless a rank has joined: either all ranks do or none does."""
        num_replayed = self._engine.num_replayed
        try:
            allgather_object(None, f"{self._label}.order", self.process_set)
        except HorovodInternalError:
            if self._engine.failure is not None:
                raise
            return
        if self._engine.num_replayed > num_replayed or self.process_set.size() == 1:  # the others are not here
            return
        transfer = self.compression.transfer_dtype
        dtypes = [transfer if transfer and g.is_floating_point() else g.dtype for g in gradients]
        kinds = [(dtype, gradient.device) for dtype, gradient in zip(dtypes, gradients, strict=True)]
        sizes = [gradient.numel() * dtype.itemsize for dtype, gradient in zip(dtypes, gradients, strict=True)]
        self._buckets = BucketReducer(
            self._engine, self._engine.tensor_queue.unique_name(f"{self._label} order"),
            self.process_set.process_set_id or 0, assign_buckets(range(len(gradients)), kinds, sizes), gradients,
            dtypes,
            self.op, 1.0 / self.predivide, self.predivide,
        )  # fmt: skip

    def _sparse(self, pairs: Sequence[Tensor]) -> list[Tensor]:
        if not pairs:
            return []
        if self.op not in (AVERAGE, SUM):
            raise NotImplementedError(
                "IndexedSlices: expected op Average or Sum, got another; give sparse_as_dense=True to reduce them so"
            )
        gathered = run(allgather_entry(pairs, f"{self._label}.sparse", self.process_set))
        if self.op == AVERAGE:
            for values in gathered[::2]:
                values.div_(self.process_set.size())
        return gathered
