"""``DistributedOptimizer`` turns any optimizer into one whose gradients are averaged over all workers.

While the backward pass runs, the all-reduce of each gradient starts as soon as the gradient is final; ``step()`` waits
for all of them. In the first step gradients are matched by name; then the ranks agree on an order, and from the second
step on nothing is negotiated.

=========================  ===========================================================================================
file                       concept
=========================  ===========================================================================================
``optimizer``              makes the distributed optimizer
``parameters``             the parameters' names, and the groups in which they are reduced
``distributed_optimizer``  counts backward passes; its step waits for the reduced gradients
``adasum_optimizer``       its step combines the ranks' updates instead
``gradient_reducer``       the all-reduce of the gradients
``gradient_order``         agreement of the ranks on the order of the gradients
=========================  ===========================================================================================
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.torch import mpi_ops as ops
from rueda.hvd.torch.adasum_optimizer import DistributedAdasum
from rueda.hvd.torch.compression import Compression, Compressor
from rueda.hvd.torch.distributed_optimizer import Distributed
from rueda.hvd.torch.gradient_reducer import GradientReducer
from rueda.hvd.torch.parameters import name_parameters, number_groups
from rueda.world.elastic import is_elastic


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
    """Make an optimizer whose gradients are averaged over all workers; it is an instance of the wrapped one's class.

    Args:
        optimizer: any torch optimizer; its parameter groups and state are shared, not copied.
        named_parameters: ``model.named_parameters()``; None: parameters are named by their position.
        compression: ``Compression.fp16`` or ``.bf16`` sends half the bytes.
        backward_passes_per_step: the number of backward passes whose gradients are accumulated before they are reduced.
        op: Average, Sum, Adasum, Min, Max or Product.
        gradient_predivide_factor: with Average, gradients are divided by this factor before the sum and by the number
            of workers over this factor after it, which avoids overflow in half precision.
        num_groups: the older form of ``groups=N``.
        groups: a number of groups, or lists of parameters whose gradients are reduced together.
        sparse_as_dense: reduce sparse gradients as dense ones, which is faster where most rows are used; they become
            sparse again before the update.
        process_set: the ranks that take part.

    Raises:
        ValueError: names are not unique or missing, or arguments contradict each other.
    """
    if gradient_predivide_factor != 1.0 and op != ops.Average:
        raise ValueError("gradient_predivide_factor: expected op Average with it, got another; leave it at 1.0")
    if num_groups:
        warnings.warn(  # scripts filter by the beginning of this message, which is Horovod's
            "Parameter `num_groups` has been replaced by `groups`: give groups=N", DeprecationWarning, stacklevel=2
        )
    if gradient_predivide_factor <= 0 or backward_passes_per_step < 1:
        raise ValueError(
            "gradient_predivide_factor and backward_passes_per_step: expected more than 0, got "
            f"{gradient_predivide_factor} and {backward_passes_per_step}; correct them"
        )
    named = name_parameters(optimizer, named_parameters)
    numbered = number_groups(named, groups if groups is not None else num_groups)
    may_grow = process_set.size() > 1 or is_elastic()
    kind = DistributedAdasum if op == ops.Adasum and may_grow else Distributed
    made_class: Any = type(optimizer.__class__.__name__, (kind, optimizer.__class__), {})
    made: Any = made_class.__new__(made_class)
    made.__dict__.update({key: value for key, value in optimizer.__dict__.items() if key != "step"})
    reducer = GradientReducer(
        named, compression, op, gradient_predivide_factor, numbered, sparse_as_dense, process_set
    )  # fmt: skip
    made._set_up(reducer, backward_passes_per_step)
    return made
