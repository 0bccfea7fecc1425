"""Measure the squared norms of the parts of a gradient and of their mean, which AdaScale and the noise scale need.

An update averages the gradients of n parts: of N workers, or of the micro-batches of gradient accumulation. The
differences between the parts show the noise. These meters read the parts where they are computed anyway:

- :class:`ExchangeMeter`, for N workers: the communication hook of DistributedDataParallel sees each bucket of gradients
  before the all-reduce (this worker's) and after it (the mean of all workers).
- :class:`PartsMeter`, for one process that computes the parts in turn: it takes the gradient of each part before the
  next backward pass, and adds them up itself instead of autograd: the same sum, in the same order.
- :class:`rueda.optim.backward_meter.BackwardMeter`, for one process in the training loop of another library: hooks on
  the parameters read the gradients, and change none.

Parts may differ in size and are weighted by it; the norms are those of the gradients of the *mean* loss of a part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from rueda.optim.engine.norms import BLOCK
from rueda.world.device import send, widest_dtype

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

Groups = Mapping[str, Sequence[nn.Parameter]]
"""the parameters of each named group"""


def moments(sum_local_square_norms: float, mean_square_norm: float, num_parts: int) -> tuple[float, float]:
    """Return estimates of the variance of one part's gradient, s2, and of the square of the true gradient, mu2.

    Both are unbiased, so mu2 may be negative by chance::

        s2  = sum |g_i|² / (n - 1) - n / (n - 1) |g|²
        mu2 = |g|² - s2 / n

    >>> moments(2 * 5.0, 3.0, 2)                # two gradients with |g_i|² = 5, their mean with |g|² = 3
    (4.0, 1.0)
    """
    spread = sum_local_square_norms - num_parts * mean_square_norm
    variance = spread / (num_parts - 1)
    return variance, mean_square_norm - variance / num_parts


class Reading(NamedTuple):
    """The norms of one update; ``norms`` must be summed over the workers."""

    norms: Tensor
    """[2, G] for G groups of parameters: sum |g_i|² (each times its size / mean size), and |g|²"""
    num_parts: int
    examples_per_part: float

    def sums(self) -> tuple[float, float]:
        """Return both sums over all parameters, on a worker that has the norms of all parts."""
        local, mean = self.norms.sum(1).tolist()
        return local, mean


def reading_of_shares(squares: Sequence[Tensor], mean_squares: Tensor, sizes: Sequence[int]) -> Reading:
    """Return the reading of parts that one process has computed in turn.

    Args:
        squares: |h|² of each part by group, [G]; h is the gradient of the part's *share* of the mean loss.
        mean_squares: |g|² of the sum of the shares by group, [G].
        sizes: the number of examples in each part.
    """
    total, count = sum(sizes), len(sizes)
    # A part's share is h = (b/M) g, and its |g|² counts b / (M/n) times: n M/b |h|².
    stacked = torch.stack(list(squares))
    factors = [count * total / size for size in sizes]
    weights = send(torch.tensor(factors, dtype=stacked.dtype), stacked.device)
    return Reading(torch.stack([weights @ stacked, mean_squares]), count, total / count)


class PartsMeter:
    """Measures the gradients of parts that one process computes in turn.

    Call :meth:`take` after the backward pass of each part, whose loss must be its *share* of the mean loss (the sum of
    the part's losses / the examples of all parts), and :meth:`finish` after the last one: then ``.grad`` holds the
    gradient of all parts.

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
        self._sums_by_group = GroupSums(self._parameters, groups)
        self._sum: list[Tensor | None] = [None] * len(self._parameters)
        self._squares: list[Tensor] = []
        self._sizes: list[int] = []
        self._factor: Tensor | float | None = None

    def take(self, num_examples: int) -> None:
        """Measure the gradient of a part with this many examples, add it to the sum, and clear ``.grad``."""
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
        """Set ``.grad`` to the sum of the parts, return their norms, and reset the meter."""
        for parameter, gradient in zip(self._parameters, self._sum, strict=True):
            parameter.grad = gradient
        reading = reading_of_shares(self._squares, self._norms(self._sum), self._sizes)
        there = [gradient for gradient in self._sum if gradient is not None]
        if there and self._factor is not None:
            factor = self._factor
            torch._foreach_mul_(there, factor.to(there[0].dtype) if isinstance(factor, Tensor) else factor)
        self._sum, self._squares, self._sizes = [None] * len(self._parameters), [], []
        self._factor = None
        return reading

    def rescale(self, factor: Tensor | float) -> None:
        """Let :meth:`finish` multiply the sum of the parts by a factor; the norms that it returns are not."""
        self._factor = factor

    def _norms(self, gradients: Sequence[Tensor | None]) -> Tensor:
        there = [number for number, gradient in enumerate(gradients) if gradient is not None]
        return self._sums_by_group.total([(there, square_norms([g for g in gradients if g is not None]))])


class ExchangeMeter:
    """Measures the gradients of N workers, as the communication hook of a DDP model.

    A model can have only one hook, so all users of the norms share this meter. ``active = False`` turns it off.

    Args:
        model: a DistributedDataParallel model without a communication hook.
        groups: groups of parameters to measure separately.
    """

    def __init__(self, model: DistributedDataParallel, groups: Groups | None = None) -> None:
        from rueda.world.shared_memory.gradients import BucketAverage

        self.active = True
        self.num_workers: int = torch.distributed.get_world_size(model.process_group)
        self._group = model.process_group
        self._average = BucketAverage(model, self._group)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._numbers = {parameter: number for number, parameter in enumerate(parameters)}
        self._sums_by_group = GroupSums(parameters, groups)
        self._local: list[Entry] = []
        self._mean: list[Entry] = []
        model.register_comm_hook(self, lambda meter, bucket: meter._exchange(bucket))  # DDP reads annotations

    @property
    def has_measured(self) -> bool:
        """Whether gradients were exchanged while the meter was active, and not yet taken."""
        return bool(self._local)

    def take(self, examples_per_part: float, own_examples: float | None = None) -> Reading | None:
        """Return the norms that *this worker* measured in the last backward pass; None if there are none.

        They must be summed over the workers. The norm of the mean, which all workers know, is divided by their number:
        the sum is then the same on every worker, bit for bit, so that all of them can base a decision on it.

        Args:
            examples_per_part: the mean number of examples of a worker.
            own_examples: this worker's number, if the losses of all workers were divided by the mean number: its
                gradient is then that of its mean loss, times own / mean.
        """
        if not self._local:
            return None
        local, mean = self._sums_by_group.total(self._local), self._sums_by_group.total(self._mean)
        if own_examples is not None and own_examples != examples_per_part:  # own / mean times |g|² of the mean loss
            local = local * (examples_per_part / own_examples)
        self._local, self._mean = [], []
        return Reading(torch.stack([local, mean / self.num_workers]), self.num_workers, examples_per_part)

    def read(self, examples_per_part: float = 1.0, own_examples: float | None = None) -> Reading | None:
        """Return the norms summed over all workers, at the cost of one small all-reduce; see :meth:`take`."""
        reading = self.take(examples_per_part, own_examples)
        if reading is not None:
            torch.distributed.all_reduce(reading.norms, group=self._group)
        return reading

    def _exchange(self, bucket: Any) -> torch.futures.Future[Tensor]:
        if not self.active:
            return self._average.begin(bucket)
        # Norms are computed per tensor, not per bucket: DDP rebuilds its buckets after the first update, which would
        # change the last digits after a restart. The gradients are views of the buffer that the all-reduce writes.
        numbers, gradients = [self._numbers[p] for p in bucket.parameters()], bucket.gradients()
        self._local.append((numbers, square_norms(gradients)))

        def after(done: torch.futures.Future[Tensor]) -> Tensor:
            mean = done.value()
            self._mean.append((numbers, square_norms(gradients)))
            return mean

        return self._average.begin(bucket).then(after)


def layer_groups(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Group the trainable parameters by the module that owns them: the first component of their name.

    If a single module holds all parameters, they are grouped by its submodules.

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
    """Return |t|² of each tensor: summed within blocks in float32 or better, over blocks in float64 if possible.

    ``dot`` is not used, because its rounding depends on where in a bucket a tensor begins.

    >>> square_norms([torch.tensor([300.0, 400.0], dtype=torch.float16), torch.ones(4)]).tolist()
    [250000.0, 4.0]
    """
    if not gradients:
        return torch.zeros(0, dtype=torch.float64)
    wide = [gradient.to(torch.promote_types(gradient.dtype, torch.float32)) for gradient in gradients]
    dtype = widest_dtype(wide[0].device)
    if all(gradient.numel() <= BLOCK for gradient in wide):
        return torch.stack(torch._foreach_norm(wide)).to(dtype).square()
    blocks = [torch.split(_dense(gradient).ravel(), BLOCK) for gradient in wide]
    norms = torch.stack(torch._foreach_norm([block for found in blocks for block in found])).to(dtype).square()
    return torch.stack([part.sum() for part in torch.split(norms, [len(found) for found in blocks])])


def _dense(gradient: Tensor) -> Tensor:
    """Return a view in memory order: channels-last weights are dense in that order, so that nothing is copied."""
    return gradient.permute(0, 2, 3, 1) if gradient.dim() == 4 and not gradient.is_contiguous() else gradient


Entry = tuple[list[int], Tensor]
"""indices of parameters, and their squared norms"""


class GroupSums:
    """Sums squared norms by group, always in the order of the parameters, whatever order they arrive in."""

    def __init__(self, parameters: Sequence[nn.Parameter], groups: Groups | None) -> None:
        numbers = {parameter: number for number, parameter in enumerate(parameters)}
        members = [[numbers[p] for p in group] for group in groups.values()] if groups else [list(numbers.values())]
        self._members = members
        self._count, self._order = len(parameters), list(range(len(parameters)))
        self._indices: dict[tuple[torch.device, tuple[int, ...]], Tensor] = {}

    def total(self, entries: Sequence[Entry]) -> Tensor:
        """Return the sum of each group, [G]."""
        first = entries[0][1]
        if len(first) == self._count and entries[0][0] == self._order and len(self._members) == 1:
            return first.sum().reshape(1)
        norms = torch.zeros(self._count, dtype=first.dtype, device=first.device)
        for numbers, found in entries:
            norms[self._index(numbers, first.device)] = found
        return torch.stack([norms[self._index(group, first.device)].sum() for group in self._members])

    def _index(self, numbers: list[int], device: torch.device) -> Tensor:
        """Return the numbers as a tensor on the device, which is kept: copying a list there would wait for it."""
        key = device, tuple(numbers)
        if key not in self._indices:
            self._indices[key] = torch.tensor(numbers, device=device)
        return self._indices[key]
