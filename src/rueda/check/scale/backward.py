"""Every backward pass ends with the gradient of the entire batch, the same on all workers.

There were three places to average: as each gradient is accumulated (as DistributedDataParallel does), at the end of the
backward pass, or before the optimizer's step. Only the second leaves all that follows as the serial script has it:
clipping, ``GradScaler``, several optimizers, norms that are printed, loops that update by hand. Gradient accumulation
works, too: gradients that are there already are put aside during the backward pass and added to afterwards, so only
what is new is averaged. The price is one exchange for each backward pass, also for those that accumulate.

A few numbers travel with the gradients: the loss, so that ``loss.item()`` after ``backward()`` is the value of the
entire batch, on all workers the same; and the running statistics of batch norm, so that all workers evaluate one model.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from rueda.check.patches import Patches
from rueda.check.scale.agreement import differing
from rueda.check.scale.batch_norm import BatchNorms
from rueda.check.scale.batches import BatchTracker
from rueda.check.scale.generator import GeneratorWatch
from rueda.check.scale.ledger import WEIGHTED, LossLedger
from rueda.check.scale.losses import LossGraph, loss_graph, normalised, weights
from rueda.check.scale.notes import Notes
from rueda.check.scale.parameters import ParameterRegistry
from rueda.world import World

_BUCKET_BYTES = 1 << 26
_OTHER_LOOPS = (
    "the workers have made different numbers of backward passes: the script's loop depends on something that is not "
    "the same on all of them, such as an accuracy of training batches, of which each worker sees its share; compute it "
    "from what all of them have: the loss after backward(), or an evaluation under torch.no_grad()"
)
_NUM_WALKS = 3  # backward passes in which the graph is searched for tensors that nobody registered


class SharedBackward:
    """Replaces ``torch.autograd.backward``, which ``loss.backward()`` calls.

    Args:
        world: the workers.
        tracker: knows this worker's share of the batch.
        parameters: the parameters whose gradients are averaged.
        batch_norms: the layers whose running statistics are averaged.
        generator: torch's generator, which is compared.
        ledger: knows which losses are verified.
        notes: where a refusal goes.
    """

    def __init__(
        self,
        world: World,
        tracker: BatchTracker,
        parameters: ParameterRegistry,
        batch_norms: BatchNorms,
        generator: GeneratorWatch,
        ledger: LossLedger,
        notes: Notes,
    ) -> None:
        self._world, self._tracker, self._parameters = world, tracker, parameters
        self._batch_norms, self._generator, self._ledger, self._notes = batch_norms, generator, ledger, notes
        self.averaged: set[int] = set()
        """numbers of the parameters whose gradients were averaged"""
        self.losses: list[Tensor] = []
        """losses of the last backward pass, of the entire batch; none if its graph is kept or has a ratio of sums"""
        self.is_running = False
        """whether a backward pass is under way"""

    def has_reached(self, parameter: Tensor) -> bool:
        """Return whether a backward pass has given a parameter a gradient."""
        return self._parameters.number(parameter) in self.averaged

    def install(self, patches: Patches) -> None:
        """Replace the function."""
        self._tracker.is_trained = self.has_reached
        patches.replace(torch.autograd, "backward", self._shared)

    def _shared(self, original: Any) -> Any:
        def backward(
            tensors: Any,
            grad_tensors: Any = None,
            retain_graph: bool | None = None,
            create_graph: bool = False,
            grad_variables: Any = None,
            inputs: Any = None,
        ) -> None:
            if self.is_running:  # a checkpointed part of the model: the pass around it averages
                original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
                return
            self._generator.before_draw()
            factor = self._tracker.begin_backward()
            if create_graph and self._world.size > 1:
                self._notes.refuse("backward(create_graph=True) is not averaged; use torch.autograd.grad")
            roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
            given = grad_tensors if grad_tensors is not None else grad_variables
            if self._tracker.num_backward <= _NUM_WALKS:
                self._search(roots)
            loss = loss_graph(roots) if self._tracker.last_shared else LossGraph()
            parameters = self._parameters.alive()
            earlier = {number: one.grad for number, one in parameters.items() if one.grad is not None}
            for number in earlier:
                parameters[number].grad = None
            self.is_running = True
            try:
                with self._generator.paused():
                    original(tensors, _scaled(roots, given, factor), retain_graph, create_graph, inputs=inputs)
            finally:
                self.is_running = False
            self._average(parameters, [] if retain_graph else roots, factor, loss)
            for number, grad in earlier.items():
                new = parameters[number].grad
                parameters[number].grad = grad if new is None else grad.add_(new)

        return backward

    def _average(self, parameters: dict[int, Tensor], roots: Sequence[Tensor], factor: float, loss: LossGraph) -> None:
        numbers = [number for number, one in parameters.items() if one.grad is not None]
        self.averaged.update(numbers)
        losses = [root for root in roots if root.numel() == 1 and root.is_floating_point()]
        self.losses = [one.detach().clone() for one in losses]
        if self._world.size == 1:
            return
        different = self._compare(numbers, loss)
        for name in different:
            if name == "gradients":
                numbers = self._united(parameters, numbers)
            elif name == "generator":
                self._generator.reconcile()
            elif name in ("kind", "divisors"):
                continue
            elif name in ("order", "share"):
                self._notes.refuse(
                    "the workers have drawn different batches: a sampler takes its order from something else than "
                    "torch, numpy or random (the time, a set, a file), or the script skips batches by a number of its "
                    "share, such as a loss that it reads before backward(); seed it, or read it after backward()"
                )
            else:
                self._notes.refuse(_OTHER_LOOPS)
        weight = self._weight(loss) if "divisors" in different else None
        if self._tracker.last_shared:
            kind = "another one on each worker" if "kind" in different else loss.kind
            kind = "; ".join([kind, *sorted(self._tracker.marks)])
            self._tracker.marks.clear()
            self._check_kind(kind if weight is None else kind + WEIGHTED)
        gradients = [parameters[number].grad for number in numbers]
        if weight is not None:
            factor *= weight
            for gradient in gradients:
                _multiply(gradient, weight)
        with torch.no_grad():
            statistics = self._batch_norms.take_statistics()
            values_of = [one.detach() * factor if factor else torch.zeros_like(one) for one in losses]
            carried = [*values_of, *statistics]
            targets = [*(one.data for one in losses), *statistics]
            averaged = average([*gradients, *carried], self._world, self._notes)  # type: ignore[list-item]
            for number, result in zip(numbers, averaged, strict=False):
                parameters[number].grad = result
            for target, result in zip(targets, averaged[len(numbers) :], strict=True):
                target.copy_(result)
            self.losses = averaged[len(numbers) : len(numbers) + len(losses)] if loss.is_linear else []

    def _checksum_of_divisors(self, loss: LossGraph) -> int:
        share = self._tracker.share
        if not loss.divisors or share is None or self._tracker.loss == "sum":
            return 0
        return zlib.crc32(repr(normalised(loss.divisors, share)).encode())

    def _weight(self, loss: LossGraph) -> float | None:
        """Return what this worker's gradient is multiplied by where the loss does not divide by the examples' number.

        All workers call it where the divisors of their losses differ; None if the examples weigh alike all the same.
        """
        share = self._tracker.share
        everyone = self._world.all_gather_object((loss.divisors, share))
        shares = [one for _, one in everyone if one is not None]
        if len(shares) < self._world.size or share is None:
            return None
        try:
            found = weights([divisors for divisors, _ in everyone], shares)
        except ValueError as error:
            self._notes.refuse(f"{error}, so the shares cannot be weighed; divide the entire loss by one number")
        if found is None or not share.num_counted:
            return None if found is None else 0.0
        return found[self._world.rank] * share.whole / share.num_counted

    def _check_kind(self, kind: str) -> None:
        """Give entire batches from now on where a loss is computed in a way that was not compared."""
        if not self._ledger.knows(kind) and self._tracker.give_entire_batches():
            self._notes.say(
                f"after {self._ledger.num_shared_steps:,} shared steps the loss is computed in another way than in "
                f"those that were verified ({kind[:90]}); this step is one of shares, unseen; from here on its "
                f"batches are not shared out, which is right, only not faster; --verify "
                f"{self._ledger.num_shared_steps + 1} compares it, --verify 0 shares it unseen"
            )

    def _compare(self, numbers: list[int], loss: LossGraph, *, at_end: bool = False) -> list[str]:
        """Return the names of what is not the same on all workers after a backward pass, or at the end."""
        share = self._tracker.share
        values = {
            "backward": -1 if at_end else self._tracker.num_backward,
            "order": self._tracker.order,
            "share": -1 if share is None else share.whole,
            "generator": self._generator.agreed(),
            "gradients": zlib.crc32(repr(numbers).encode()),
            "kind": zlib.crc32(loss.kind.encode()),
            "divisors": self._checksum_of_divisors(loss),
        }
        return differing(self._world, values)

    def check_end(self) -> None:
        """Refuse a script that ends on some workers while others make another backward pass; all of them call it."""
        if "backward" in self._compare([], LossGraph(), at_end=True):
            self._notes.refuse(_OTHER_LOOPS)

    def _united(self, parameters: dict[int, Tensor], numbers: list[int]) -> list[int]:
        """Give a gradient of zero to the parameters that only other workers have used."""
        union = sorted({number for part in self._world.all_gather_object(numbers) for number in part})
        for number in union:
            if parameters[number].grad is None:
                parameters[number].grad = torch.zeros_like(parameters[number])
        return union

    def _search(self, roots: Sequence[Tensor]) -> None:
        """Refuse tensors that get a gradient, but belong to no module and no optimizer: it would not be averaged."""
        share = self._tracker.share
        for leaf in leaves(roots):
            of_batch = share is not None and leaf.dim() > 0 and leaf.shape[0] == share.rows
            if leaf not in self._parameters and not of_batch and share is not None:
                self._notes.refuse(
                    f"a tensor of shape {tuple(leaf.shape)} gets a gradient, but belongs to no module and no optimizer "
                    "of torch, so it cannot be averaged; make it an nn.Parameter, or give it to an optimizer"
                )


def _multiply(gradient: Tensor | None, weight: float) -> None:
    """Multiply a gradient; with 0 it is 0 also where it was not a number, as that of a mean over nothing."""
    if gradient is not None and weight:
        gradient.mul_(weight)
    elif gradient is not None:
        gradient.zero_()


def _scaled(roots: Sequence[Tensor], given: Any, factor: float) -> Any:
    """Return the gradients with which the backward pass starts, times a factor; with 1 they are those of the script."""
    if factor == 1.0:
        return given
    if given is None:
        return [torch.full_like(root, factor) for root in roots]
    grads = [given] if isinstance(given, Tensor) else list(given)
    return [
        torch.full_like(root, factor) if grad is None else grad * factor
        for root, grad in zip(roots, grads, strict=True)
    ]


def average(tensors: Sequence[Tensor], world: World, notes: Notes) -> list[Tensor]:
    """Return the average of each tensor over all workers, with few collectives: a bucket for each device and dtype."""
    results: dict[int, Tensor] = {}
    order = sorted(range(len(tensors)), key=lambda index: (str(tensors[index].device), str(tensors[index].dtype)))
    for _, indices in groupby(order, key=lambda index: (tensors[index].device, tensors[index].dtype)):
        for bucket in _buckets(tensors, list(indices)):
            if any(tensors[index].layout != torch.strided for index in bucket):
                notes.refuse("sparse gradients are not averaged; create the nn.Embedding with sparse=False")
            flat = torch.cat([tensors[index].reshape(-1) for index in bucket])
            world.all_reduce_(flat, "mean")
            parts = flat.split([tensors[index].numel() for index in bucket])  # type: ignore[no-untyped-call]
            for index, part in zip(bucket, parts, strict=True):
                results[index] = part.view(tensors[index].shape)
    return [results[index] for index in range(len(tensors))]


def _buckets(tensors: Sequence[Tensor], indices: Sequence[int]) -> Iterable[list[int]]:
    bucket: list[int] = []
    num_bytes = 0
    for index in indices:
        bucket.append(index)
        num_bytes += tensors[index].numel() * tensors[index].element_size()
        if num_bytes >= _BUCKET_BYTES:
            yield bucket
            bucket, num_bytes = [], 0
    if bucket:
        yield bucket


def leaves(roots: Sequence[Tensor]) -> list[Tensor]:
    """Return the leaf tensors that a backward pass from these roots reaches.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> [leaf is weight for leaf in leaves([(weight * 2).sum()])]
    [True]
    """
    waiting: list[Any] = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen, found = set(waiting), []
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            found.append(node.variable)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return found
