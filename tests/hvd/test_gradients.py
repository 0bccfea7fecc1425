"""Gradients through every collective: Horovod's factors, and those of ``hvd.exact``, against closed forms.

Each rank multiplies its result by its weight w_r = r + 1 and sums it: the loss of rank r. The gradient that arrives at
the result is therefore w_r on rank r.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rueda.hvd.torch as hvd
from harness import workers

LARGE = 20_000  # elements: sent by a process group; few are sent with the negotiation


def check_gradients(process_set: hvd.ProcessSet) -> None:
    """Check Horovod's gradients and the exact ones among the ranks of a process set."""
    members = process_set.ranks
    assert members is not None
    n, r = len(members), process_set.rank()
    own = torch.tensor([float(rank + 1) for rank in members], dtype=torch.float64)  # the weights of the members
    w, total = own[r].item(), own.sum().item()
    here: dict = {"process_set": process_set}
    last = members[-1]

    def gradient(x: torch.Tensor, *results: torch.Tensor) -> torch.Tensor:
        (slope,) = torch.autograd.grad(w * sum(result.sum() for result in results), x)
        return slope

    for size in (3, LARGE):
        x = torch.full((size,), w, dtype=torch.float64, requires_grad=True)
        rows = torch.ones(size + r, 2, dtype=torch.float64, requires_grad=True)  # every rank has another number
        send = torch.ones(n * size, dtype=torch.float64, requires_grad=True)
        parts = own.repeat_interleave(size)  # the weights of the ranks that receive the parts of `send`
        scaled = {"prescale_factor": 0.5, "postscale_factor": 4.0, **here}
        extreme = {hvd.Min: w == own.min().item(), hvd.Max: w == own.max().item()}
        zero = torch.full((size,), float(r), dtype=torch.float64, requires_grad=True)  # only the first rank's is 0
        others = float(np.prod(range(1, n))) if r == 0 else 0.0
        for got, expected in (
            # Horovod's: all-reduce reduces the gradients with the operation itself ...
            (gradient(x, hvd.allreduce(x, op=hvd.Sum, name="sum", **here)), total),
            (gradient(x, hvd.allreduce(x, **here)), total / n),
            (gradient(x, hvd.allreduce(x, op=hvd.Sum, **scaled)), 2 * total),
            (gradient(x, hvd.allreduce(x, **scaled)), 2 * total / n),
            (gradient(x, hvd.allreduce(x, op=hvd.Min, **here)), own.min().item()),
            (gradient(x, hvd.allreduce(x, op=hvd.Max, **here)), own.max().item()),
            (gradient(x, hvd.allreduce(x, op=hvd.Product, **here)), own.prod().item()),
            (gradient(x, *hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum, **here)), 3 * total),
            # ... all-gather and broadcast average them ...
            (gradient(rows, hvd.allgather(rows, name="rows", **here)), total / n),
            (gradient(rows, *hvd.grouped_allgather([rows, 2 * rows[:1]], **here))[0], 3 * total / n),
            (gradient(rows, *hvd.grouped_allgather([rows, 2 * rows[:1]], **here))[1:], total / n),
            (gradient(x, hvd.broadcast(x, last, **here)), total / n if r == n - 1 else 0.0),
            # ... all-to-all returns them ...
            (gradient(send, hvd.alltoall(send, **here)), parts),
            (gradient(send, hvd.alltoall(send, [size] * n, **here)[0]), parts),
            # ... and reduce-scatter gathers them, times the number of ranks for a sum.
            (gradient(send, hvd.reducescatter(send, op=hvd.Sum, **here)), n * parts),
            (gradient(send, hvd.reducescatter(send, **here)), parts),
            (gradient(send, hvd.reducescatter(send, op=hvd.Sum, **scaled)), 2 * n * parts),
            (gradient(send, hvd.reducescatter(send, **scaled)), 2 * parts),
            (gradient(send, *hvd.grouped_reducescatter([send, 2 * send], op=hvd.Sum, **here)), 3 * n * parts),
            (gradient(send, *hvd.grouped_reducescatter([send, 2 * send], **here)), 3 * parts),
            # Exact: the derivatives of the sum of all losses.
            (gradient(x, hvd.exact.allreduce(x, op=hvd.Sum, **here)), total),
            (gradient(x, hvd.exact.allreduce(x, **here)), total / n),
            (gradient(x, hvd.exact.allreduce(x, op=hvd.Min, **here)), total * extreme[hvd.Min]),
            (gradient(x, hvd.exact.allreduce(x, op=hvd.Max, name="max", **here)), total * extreme[hvd.Max]),
            (gradient(x, hvd.exact.allreduce(0 * x + 7, op=hvd.Max, **here)), 0.0),
            (gradient(send, hvd.exact.allreduce(send, op=hvd.Max, **here)), total / n),  # a tie
            (gradient(x, hvd.exact.allreduce(x, op=hvd.Product, **here)), total * own.prod().item() / w),
            (gradient(zero, hvd.exact.allreduce(zero, op=hvd.Product, **here)), total * others),
            (gradient(rows, hvd.exact.allgather(rows, **here)), total),
            (gradient(rows, *hvd.exact.grouped_allgather([rows, 2 * rows], **here)), 3 * total),
            (gradient(x, hvd.exact.broadcast(x, last, **here)), total if r == n - 1 else 0.0),
            (gradient(send, hvd.exact.alltoall(send, **here)), parts),
            (gradient(send, hvd.exact.reducescatter(send, op=hvd.Sum, **here)), parts),
            (gradient(send, hvd.exact.reducescatter(send, **here)), parts / n),
        ):
            torch.testing.assert_close(got, torch.zeros_like(got) + expected)
    with pytest.raises(RuntimeError, match="where gradients are needed"):
        hvd.reducescatter(send, op=hvd.Max, **here)


@workers(2)
def test_gradients_on_2() -> None:
    hvd.init()
    check_gradients(hvd.global_process_set)


@workers(3)
def test_gradients_on_3_and_in_process_sets() -> None:
    hvd.init()
    check_gradients(hvd.global_process_set)
    outer, single = hvd.add_process_set([0, 2]), hvd.add_process_set([1])
    check_gradients(outer if outer.included() else single)
    hvd.remove_process_set(outer)
    hvd.remove_process_set(single)


@workers(2)
def test_contrastive_loss_over_gathered_features_trains_as_one_worker() -> None:
    """N workers that gather and sum their gradients equal one worker with the whole batch."""
    hvd.init()
    n, r = hvd.size(), hvd.rank()
    batch = torch.randn(4 * n, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def loss(features: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(features @ features.t(), 1).mean()

    weights = []
    for part in (batch, batch[r * 4 : r * 4 + 4]):
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 3, dtype=torch.float64)
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        features = model(part)
        if len(part) < len(batch):
            # Every rank computes the whole loss; the sum of the ranks' shares of its gradient is wanted.
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Sum)
            features = hvd.allgather(features)
        loss(features).backward()
        optimizer.step()
        weights.append(model.weight.detach())
    torch.testing.assert_close(weights[1], weights[0])
