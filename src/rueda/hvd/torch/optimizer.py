"""DistributedOptimizer: any optimizer, on gradients that are averaged over all workers.

While the backward pass runs, each gradient that is final is on its way; ``step()`` waits for them all. In the first
step gradients are matched by name; then the ranks agree on an order (:mod:`rueda.hvd.core.known_order`), and from the
second step on nothing is negotiated.

=========================  ===========================================================================================
file                       concept
=========================  ===========================================================================================
``optimizer``              makes a distributed optimizer of any other
``parameters``             names for its parameters, and the groups they travel in
``distributed_optimizer``  counts backward passes; the step that waits for reduced gradients
``adasum_optimizer``       the step that combines updates instead
``exchange``               sends gradients and brings them back
``agreement``              in which order they will come
=========================  ===========================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.torch import mpi_ops as ops
from rueda.hvd.torch.adasum_optimizer import DistributedAdasum
from rueda.hvd.torch.compression import Compression, Compressor
from rueda.hvd.torch.distributed_optimizer import Distributed
from rueda.hvd.torch.exchange import Exchange
from rueda.hvd.torch.parameters import name_parameters, number_groups


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = ops.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Make an optimizer whose gradients are averaged over all workers; it is an instance of the given one's class.

    Args:
        optimizer: any torch optimizer; its parameter groups and state are shared, not copied.
        named_parameters: ``model.named_parameters()``; None: names by position.
        compression: ``Compression.fp16`` or ``.bf16`` sends half the bytes.
        backward_passes_per_step: gradients are accumulated over so many backward passes before they are sent.
        op: Average, Sum, Adasum, Min, Max or Product.
        gradient_predivide_factor: with Average: divide by so much before the sum, and by the rest after it, against
            overflow in half precision.
        num_groups: send the gradients in so many groups; the same as ``groups=N``.
        groups: a number, or lists of parameters that travel together.
        sparse_as_dense: send sparse gradients as dense ones: faster where most rows are used.
        process_set: among whom.

    Raises:
        ValueError: names that are not unique or not complete, or arguments that contradict each other.
    """
    if gradient_predivide_factor != 1.0 and op != ops.Average:
        raise ValueError("gradient_predivide_factor: expected op Average with it; leave it at 1.0")
    if gradient_predivide_factor <= 0 or backward_passes_per_step < 1:
        raise ValueError(
            "gradient_predivide_factor and backward_passes_per_step: expected more than 0, got "
            f"{gradient_predivide_factor} and {backward_passes_per_step}"
        )
    named = name_parameters(optimizer, named_parameters)
    numbered = number_groups(named, groups if groups is not None else num_groups)
    kind = DistributedAdasum if op == ops.Adasum and process_set.size() > 1 else Distributed
    made_class: Any = type(optimizer.__class__.__name__, (kind, optimizer.__class__), {})
    made: Any = made_class.__new__(made_class)
    made.__dict__.update({key: value for key, value in optimizer.__dict__.items() if key != "step"})
    exchange = Exchange(
        named, compression, op, gradient_predivide_factor, numbered, sparse_as_dense, process_set
    )  # fmt: skip
    made._set_up(exchange, backward_passes_per_step)
    return made
