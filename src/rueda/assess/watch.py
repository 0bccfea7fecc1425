"""What a worker notes beside the observation of ``rueda check``: the examples of each step, and the weights after it.

======================  ==================================================================================
``forward``, ``initial``  the first training step begins: the time, and the weights as they are before it
``trained``             an optimizer step: digests of the examples from which its gradients come, digests of the weights
``changed``             the weights differ from those after the step before, though no optimizer has made a step
``sample``              an example in full, since an augmented one has another digest than the task's
======================  ==================================================================================

An example counts as trained on if a gradient flows back through the first layer that has read it. So evaluations, with
or without ``no_grad``, do not count. Of ``digests``, the first ``rows`` were read by a layer that an optimizer changes:
only these make up an epoch.
"""

from __future__ import annotations

import base64
import hashlib
import random
from array import array
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from rueda.assess.seal import SealedJournal
from rueda.check.audit.watch.digest import rows
from rueda.check.patches import Patches

BEGUN = "begun"
"""the mark of a worker that has begun to train"""
_SAMPLES = 192  # examples in full, at most
_CHANGES = 1000  # that are noted, at most


class TrainingWatch:
    """Notes what this worker trains on and what comes of it.

    Args:
        journal: where it is noted.
        shape: the shape of one example.
    """

    def __init__(self, journal: SealedJournal, shape: tuple[int, ...]) -> None:
        self._journal, self._shape = journal, shape
        self._read: list[_Read] = []
        self._steps = self._samples = self._changes = 0
        self._depth = 0
        self._weights: dict[int, str] = {}  # by the identity of a parameter: after its last step
        self._random = random.SystemRandom()
        self._begun = False

    def install(self, patches: Patches) -> None:
        """Register torch's global hooks."""
        self._handles = [
            register_module_forward_hook(self._reading), register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]  # fmt: skip
        for handle in self._handles:
            patches.on_undo(handle.remove)

    @property
    def is_removed(self) -> bool:
        """Whether somebody has removed the hooks."""
        return any(handle.id not in (handle.hooks_dict_ref() or {}) for handle in self._handles)

    def _reading(self, module: Any, args: Any, output: Any) -> None:
        given = args[0] if args and isinstance(args[0], Tensor) else None
        if given is None or tuple(given.shape[1:]) != self._shape or not isinstance(output, Tensor):
            return
        if not output.requires_grad or any(one.given is given for one in self._read):
            return
        with self._journal.careful:
            self._begin()
            one = _Read(given, example_digests(given), {id(each) for each in module.parameters()})
            if len(self._read) >= 64:
                self._read = [each for each in self._read if each.used]
            self._read.append(one)
            output.register_hook(one.use)  # type: ignore[no-untyped-call]

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._journal.note("forward")
            self._journal.mark(BEGUN)

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        with self._journal.careful:
            self._begin()
            for one in _parameters(optimizer):
                known = self._weights.get(id(one))
                if known is None:
                    self._journal.note("initial", weights=encoded(one))
                elif known != fingerprint(one) and self._changes < _CHANGES:
                    self._changes += 1
                    self._journal.note("changed", step=self._steps)

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._depth -= 1
        if self._depth:
            return
        with self._journal.careful:
            self._steps += 1
            for one in _parameters(optimizer):
                self._weights[id(one)] = fingerprint(one)
            used = [one for one in self._read if one.used]
            used.sort(key=lambda one: one.parameters.isdisjoint(self._weights))  # those that are learned from first
            learned = [one for one in used if not one.parameters.isdisjoint(self._weights)]
            digests = array("I", [row for one in used for row in one.rows])
            self._journal.note(
                "trained", step=self._steps, rows=sum(len(one.rows) for one in learned),
                digests=base64.b64encode(digests.tobytes()).decode(),
                weights=list(self._weights.values()),
            )  # fmt: skip
            if used and self._samples < _SAMPLES and (self._steps <= 16 or self._random.random() < 0.2):
                self._sample(used[-1])
            self._read.clear()

    def _sample(self, batch: _Read) -> None:
        self._samples += 1
        chosen = self._random.randrange(len(batch.given))
        row = batch.given[chosen].detach().to("cpu", torch.float16).contiguous()
        values = base64.b64encode(row.numpy().tobytes()).decode()
        self._journal.note("sample", digest=batch.rows[chosen], values=values)


class _Read:
    """A batch that a layer has read."""

    def __init__(self, given: Tensor, rows: list[int], parameters: set[int]) -> None:
        self.given, self.rows, self.used = given, rows, False
        self.parameters = parameters  # of the layer: if no optimizer has any of them, nothing is learned from it

    def use(self, gradient: Tensor) -> None:
        """Note that a gradient flows back to it."""
        self.used = self.used or bool(gradient.any())


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def example_digests(images: Tensor) -> list[int]:
    """Return a digest of each image that does not depend on how its normalisation was rounded.

    >>> image = torch.tensor([[[[7.0, 200.0]]]])
    >>> example_digests((image / 255 - 0.3) / 0.35) == example_digests(image * (1 / (255 * 0.35)) - 0.3 / 0.35)
    True
    """
    return rows((images.detach().double() * 512).round().to(torch.int32))


def fingerprint(weights: Tensor) -> str:
    """Return a digest of all values of a parameter and of its shape.

    >>> fingerprint(torch.zeros(2)) == fingerprint(torch.zeros(2)), fingerprint(torch.zeros(1, 2))
    (True, '...')
    """
    values = weights.detach().to("cpu", torch.float32).contiguous()
    return hashlib.blake2b(repr(tuple(values.shape)).encode() + values.numpy().tobytes(), digest_size=8).hexdigest()


def encoded(weights: Tensor) -> dict[str, Any]:
    """Return a parameter as JSON: its shape and values."""
    values = weights.detach().to("cpu", torch.float32).contiguous()
    return {"shape": list(values.shape), "values": base64.b64encode(values.numpy().tobytes()).decode()}
