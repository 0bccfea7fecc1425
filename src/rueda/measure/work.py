"""Count the work of a training step, from which a plan predicts a device that was not measured.

==============  ======================================================================================================
flops           of one forward and one backward pass, per example (:mod:`rueda.train.counting`)
saved bytes     what the forward pass keeps for the backward pass, per example: a step writes it once and reads it once
update bytes    trainable parameters, their gradients and the optimizer's state: each is read and written once
==============  ======================================================================================================

These are the bytes that a step must move. A framework that runs one operation after the other moves several times as
many, since each operation reads its inputs from memory and writes its result there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from rueda.errors import ProfileError
from rueda.records.profile import StepWork
from rueda.train.counting import PassCount, count_backward, count_pass, update_bytes
from rueda.train.training import Training


def work_of(training: Training, batch: int) -> StepWork | None:
    """Count the work of a task's step at a local batch, after the first update has made the optimizer's state.

    None if it is not known: the code of the model or of its loss needs values, or the task has several phases.
    """
    if training.task.phases:
        return None
    training.fix_batch(batch)
    training.begin_epoch()
    first = training.next_batches()[0][0]
    try:
        counted = count_pass(training.task, training.model, first.batch)
    except Exception:  # of any kind: the code is the user's
        return None
    return _per_example(counted, first.num_examples, update_bytes(training.model, training.optimizer))


def count_work(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor], examples: int
) -> StepWork:
    """Count the work of a step in a training loop of one's own; one real forward and backward pass is made for it.

    Call it between two updates, after the first one, in which most optimizers make their state. It clears the
    gradients.

    Args:
        model: the model.
        optimizer: the optimizer, whose state is counted.
        loss: computes the loss of a batch, as ``lambda: F.cross_entropy(model(inputs), targets)``.
        examples: the number of examples in that batch.

    >>> model = nn.Linear(20, 30)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> work = count_work(model, optimizer, lambda: model(torch.ones(6, 20)).sum(), 6)
    >>> work.flops == 2 * 2 * 20 * 30, work.saved_bytes == 4 * 20, work.update_bytes == 2 * 4 * (20 * 30 + 30)
    (True, True, True)
    """
    if examples < 1:
        raise ProfileError("examples", expected="1 or more", got=examples, do="give the length of the batch")
    counted = count_backward(loss, (*model.parameters(), *model.buffers()))
    optimizer.zero_grad(set_to_none=True)
    return _per_example(counted, examples, update_bytes(model, optimizer))


def _per_example(counted: PassCount, examples: int, of_update: int) -> StepWork:
    return StepWork(
        flops=counted.flops / examples, saved_bytes=counted.saved_bytes / examples, update_bytes=of_update
    )  # fmt: skip
