"""The squared norms of the parts of a gradient, and of the whole: what AdaScale and the noise scale live on.

An update averages the gradients of n parts: N workers, or the micro-batches that one of them accumulates. The noise
shows in how much the parts disagree. Two meters see the parts where they are anyway, so that nothing is computed twice:

- :class:`ExchangeMeter`: N workers. Inside the exchange of DistributedDataParallel each bucket of gradients is seen
  before the average (this worker's) and after it (all workers').
- :class:`PartsMeter`: one process that computes the parts in turn. A part's gradient is put aside before the next
  one, so that adding them up is done here and not by autograd: the same sum, in the same order.

Both count a part by its size, so that parts may differ; norms are those of the gradients of the *mean* loss of a part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from rueda.optim.engine.norms import BLOCK

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

Groups = Mapping[str, Sequence[nn.Parameter]]
"""parameters by the name of their group"""


def moments(sum_local_square_norms: float, mean_square_norm: float, num_parts: int) -> tuple[float, float]:
    """Return the estimates (s2, mu2) of one step: the variance of one part's gradient, the square of the true one's.

    Both are without bias, so mu2 may come out below 0 by chance::

        s2  = sum |g_i|² / (n - 1) - n / (n - 1) |g|²
        mu2 = |g|² - s2 / n

    >>> moments(2 * 5.0, 3.0, 2)                # two gradients with |g_i|² = 5, their mean with |g|² = 3
    (4.0, 1.0)
    """
    spread = sum_local_square_norms - num_parts * mean_square_norm
    variance = spread / (num_parts - 1)
    return variance, mean_square_norm - variance / num_parts


class Reading(NamedTuple):
    """What a meter saw in one update; add ``norms`` up over the workers."""

    norms: Tensor
    """[2, G] for G groups of parameters: sum |g_i|² (each times its size / mean size), and |g|²"""
    num_parts: int
    examples_per_part: float

    def sums(self) -> tuple[float, float]:
        """Give both numbers for all parameters together, on a worker that sees all parts."""
        local, mean = self.norms.sum(1).tolist()
        return local, mean


class PartsMeter:
    """Sees the gradients of the parts that one process computes in turn.

    Call :meth:`take` after each part's backward pass, whose loss must be its *share* of the mean loss (sum of the
    part's losses / examples of all parts), and :meth:`finish` after the last: then ``.grad`` holds the whole gradient.

    >>> w = nn.Parameter(torch.tensor([1.0, 2.0]))
    >>> meter = PartsMeter([w])
    >>> for x in (torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])):
    ...     ((w * x).sum() / 2).backward()
    ...     meter.take(1)
    >>> reading = meter.finish()
    >>> w.grad, reading.sums(), reading.num_parts
    (tensor([1.5000, 2.0000]), (25.0, 6.25), 2)
    """

    def __init__(self, parameters: Iterable[nn.Parameter], groups: Groups | None = None) -> None:
        self._parameters = list(parameters)
        self._ledger = _Ledger(self._parameters, groups)
        self._sum: list[Tensor | None] = [None] * len(self._parameters)
        self._squares: list[Tensor] = []
        self._sizes: list[int] = []

    def take(self, num_examples: int) -> None:
        """Note the gradient of a part of so many examples and put it aside."""
        gradients = [parameter.grad for parameter in self._parameters]
        self._squares.append(self._norms(gradients))
        self._sizes.append(num_examples)
        pairs = [(a, g) for a, g in zip(self._sum, gradients, strict=True) if a is not None and g is not None]
        if pairs:
            torch._foreach_add_([a for a, _ in pairs], [g for _, g in pairs])
        if len(pairs) < len(gradients):
            self._sum = [g if a is None else a for a, g in zip(self._sum, gradients, strict=True)]
        for parameter in self._parameters:
            parameter.grad = None

    def finish(self) -> Reading:
        """Hand the sum of the parts to ``.grad``, say what was seen, and forget it."""
        for parameter, gradient in zip(self._parameters, self._sum, strict=True):
            parameter.grad = gradient
        total, count = sum(self._sizes), len(self._sizes)
        # A part's share is h = (b/M) g, and its |g|² counts b / (M/n) times: n M/b |h|².
        squares = torch.stack(self._squares)
        factors = [count * total / size for size in self._sizes]
        weights = torch.tensor(factors, dtype=squares.dtype, device=squares.device)
        norms = torch.stack([weights @ squares, self._norms(self._sum)])
        self._sum, self._squares, self._sizes = [None] * len(self._parameters), [], []
        return Reading(norms, count, total / count)

    def _norms(self, gradients: Sequence[Tensor | None]) -> Tensor:
        there = [number for number, gradient in enumerate(gradients) if gradient is not None]
        return self._ledger.total([(there, square_norms([g for g in gradients if g is not None]))])


class ExchangeMeter:
    """Sees the gradients of N workers inside the exchange of a DDP model, of which it becomes the communication hook.

    A model has one hook, so whoever wants the numbers shares this meter. ``active = False`` lets an update pass unseen.

    Args:
        model: wrapped by DistributedDataParallel; no other hook may be registered.
        groups: measure groups of parameters apart.
    """

    def __init__(self, model: DistributedDataParallel, groups: Groups | None = None) -> None:
        self.active = True
        self.num_workers: int = torch.distributed.get_world_size(model.process_group)
        self._group = model.process_group
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._numbers = {parameter: number for number, parameter in enumerate(parameters)}
        self._ledger = _Ledger(parameters, groups)
        self._local: list[Entry] = []
        self._mean: list[Entry] = []
        model.register_comm_hook(self, lambda meter, bucket: meter._exchange(bucket))  # DDP reads annotations

    def take(self, examples_per_part: float) -> Reading | None:
        """Give what *this worker* saw of the last backward pass, to be added up over the workers; None if nothing.

        The mean's norm, which all workers know, is divided among them: the sum is then the same on every worker, bit
        for bit, and may decide what all of them do.
        """
        if not self._local:
            return None
        local, mean = self._ledger.total(self._local), self._ledger.total(self._mean)
        self._local, self._mean = [], []
        return Reading(torch.stack([local, mean / self.num_workers]), self.num_workers, examples_per_part)

    def read(self, examples_per_part: float = 1.0) -> Reading | None:
        """Give the same, added up over all workers; costs one small exchange."""
        reading = self.take(examples_per_part)
        if reading is not None:
            torch.distributed.all_reduce(reading.norms, group=self._group)
        return reading

    def _exchange(self, bucket: Any) -> torch.futures.Future[Tensor]:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        if not self.active:
            return allreduce_hook(self._group, bucket)
        # Tensor by tensor, not the bucket as a whole: DDP cuts its buckets anew after the first update, which would
        # change the last digits after a restart. The gradients are views of the buffer that the exchange writes.
        numbers, gradients = [self._numbers[p] for p in bucket.parameters()], bucket.gradients()
        self._local.append((numbers, square_norms(gradients)))

        def after(done: torch.futures.Future[Tensor]) -> Tensor:
            mean = done.value()
            self._mean.append((numbers, square_norms(gradients)))
            return mean

        return allreduce_hook(self._group, bucket).then(after)


def layer_groups(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Group the trainable parameters by the part of the model that owns them: the first word of their name.

    A model whose parameters all hang below one part is grouped by the parts of that part.

    >>> model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)))
    >>> {name: len(found) for name, found in layer_groups(model).items()}
    {'0.0': 2, '0.2': 2}
    """
    named = [(name.split("."), p) for name, p in model.named_parameters() if p.requires_grad]
    depth, deepest = 1, max((len(words) for words, _ in named), default=1)
    while depth < deepest - 1 and len({tuple(words[:depth]) for words, _ in named}) == 1:
        depth += 1
    groups: dict[str, list[nn.Parameter]] = {}
    for words, parameter in named:
        groups.setdefault(".".join(words[:depth]), []).append(parameter)
    return groups


def square_norms(gradients: Sequence[Tensor]) -> Tensor:
    """Sum the squares of each tensor: blocks in float32 or better, the blocks in float64 where the device has it.

    Not by ``dot``: what it rounds depends on where in a bucket a tensor begins.

    >>> square_norms([torch.tensor([300.0, 400.0], dtype=torch.float16), torch.ones(4)]).tolist()
    [250000.0, 4.0]
    """
    if not gradients:
        return torch.zeros(0, dtype=torch.float64)
    wide = [gradient.to(torch.promote_types(gradient.dtype, torch.float32)) for gradient in gradients]
    dtype = torch.float32 if wide[0].device.type == "mps" else torch.float64
    if all(gradient.numel() <= BLOCK for gradient in wide):
        return torch.stack(torch._foreach_norm(wide)).to(dtype).square()
    blocks = [torch.split(_dense(gradient).ravel(), BLOCK) for gradient in wide]
    norms = torch.stack(torch._foreach_norm([block for found in blocks for block in found])).to(dtype).square()
    return torch.stack([part.sum() for part in torch.split(norms, [len(found) for found in blocks])])


def _dense(gradient: Tensor) -> Tensor:
    """Channels-last weights lie densely in another order; in that order nothing is copied."""
    return gradient.permute(0, 2, 3, 1) if gradient.dim() == 4 and not gradient.is_contiguous() else gradient


Entry = tuple[list[int], Tensor]
"""numbers of some parameters, and their squared norms"""


class _Ledger:
    """Adds squared norms up by group, in the order of the parameters whatever order they came in."""

    def __init__(self, parameters: Sequence[nn.Parameter], groups: Groups | None) -> None:
        numbers = {parameter: number for number, parameter in enumerate(parameters)}
        members = [[numbers[p] for p in group] for group in groups.values()] if groups else [list(numbers.values())]
        self._members = members
        self._count, self._order = len(parameters), list(range(len(parameters)))

    def total(self, entries: Sequence[Entry]) -> Tensor:
        """Give the sum of each group, [G]."""
        first = entries[0][1]
        if len(first) == self._count and entries[0][0] == self._order and len(self._members) == 1:
            return first.sum().reshape(1)
        norms = torch.zeros(self._count, dtype=first.dtype, device=first.device)
        for numbers, found in entries:
            norms[numbers] = found
        return torch.stack([norms[group].sum() for group in self._members])
