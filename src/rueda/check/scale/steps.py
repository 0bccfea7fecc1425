"""Checks at the optimizer's steps: gradients that were not averaged, learning rates and parameters that differ."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from rueda.check.patches import Patches
from rueda.check.scale.agreement import differing
from rueda.check.scale.backward import SharedBackward
from rueda.check.scale.batches import BatchTracker
from rueda.check.scale.ledger import LossLedger
from rueda.check.scale.notes import Notes
from rueda.check.scale.parameters import ParameterRegistry
from rueda.check.scale.verification import Verification
from rueda.errors import ScaleError
from rueda.world import World


class StepChecks:
    """Checks at the optimizer's steps that all workers still train the same model.

    Args:
        world: the workers.
        tracker: counts the shared backward passes.
        parameters: the parameters.
        backward: knows whose gradients were averaged.
        verification: compares the first shared gradients with the serial script's.
        ledger: decides which are compared.
        inexact: tells why the gradients may differ from the serial script's; nothing if they must not.
        notes: where the user is told.
    """

    def __init__(
        self,
        world: World,
        tracker: BatchTracker,
        parameters: ParameterRegistry,
        backward: SharedBackward,
        verification: Verification,
        ledger: LossLedger,
        inexact: Callable[[], str],
        notes: Notes,
    ) -> None:
        self._world, self._tracker, self._parameters = world, tracker, parameters
        self._backward, self._verification, self._inexact, self._notes = backward, verification, inexact, notes
        self._ledger = ledger
        self._num_shared_seen = 0
        self.num_steps = 0
        self.num_shared_steps = 0

    def install(self, patches: Patches) -> None:
        """Register torch's global hooks of optimizer steps."""
        patches.on_undo(register_optimizer_step_pre_hook(self._before).remove)
        patches.on_undo(register_optimizer_step_post_hook(self._after).remove)

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._notes.check()
        self.num_steps += 1
        has_closure = any(callable(one) for one in (*args[1:], kwargs.get("closure")))  # args[0] is the optimizer
        if not has_closure:
            self._check_gradients(optimizer)
        shared = self._tracker.num_shared_backward > self._num_shared_seen
        self._num_shared_seen = self._tracker.num_shared_backward
        self.num_shared_steps += shared
        if _is_power(self.num_steps):
            self._check_parameters(optimizer)
        self._verify(optimizer, compare=self._ledger.compares(optimizer, shared=shared))
        if not has_closure:  # a closure runs the model within the step
            self._tracker.is_suspended = True

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._tracker.is_suspended = False

    def _verify(self, optimizer: Any, *, compare: bool) -> None:
        """Let rank 0 compare the gradients with the serial script's; all workers learn of a refusal."""
        refusal = ""
        try:
            losses = self._backward.losses if compare or self._world.size == 1 else []
            self._verification.at_step(optimizer, compare=compare, losses=losses, inexact=self._inexact())
        except ScaleError as error:
            refusal = str(error)
        if compare:
            refusal = self._world.broadcast_object(refusal)
        if refusal:
            self._notes.refuse(refusal)
        if self._ledger.is_over:
            self._verification.close()

    def _check_gradients(self, optimizer: Any) -> None:
        """Refuse gradients that do not come from a finished backward pass, since they were not averaged."""
        if self._world.size == 1:
            return
        if self._backward.is_running:
            self._notes.refuse(
                "an optimizer makes its step within backward(), before the gradients are averaged; call step() after it"
            )
        with_gradient = [one for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
        if not all(map(self._backward.has_reached, with_gradient)):
            self._notes.refuse(
                "an optimizer's step has gradients that do not come from backward() (torch.autograd.grad, or p.grad "
                "set by hand), so they cannot be averaged; call backward()"
            )

    def _check_parameters(self, optimizer: Any) -> None:
        """Refuse parameters that differ between the workers; all of them call it at the same step."""
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        share = self._tracker.share
        rows = 0 if share is None else share.rows
        buffers = [one for one in self._parameters.buffers() if rows not in one[1].shape[:2]]  # not a row an example
        names = differing(
            self._world,
            {
                "parameters": zlib.crc32(repr(list(map(_checksum, parameters))).encode()),
                "buffers": zlib.crc32(repr([_checksum(buffer) for _, buffer in buffers]).encode()),
            },
        )
        if "parameters" in names:
            self._refuse_drift()
        if "buffers" in names:
            self._refuse_buffers(buffers)

    def check_at_end(self) -> None:
        """Compare the trained parameters once more at the end, as far as they still exist on all workers."""
        left = {
            number: _checksum(one)
            for number, one in self._parameters.alive().items()
            if number in self._backward.averaged
        }
        everywhere = self._world.all_gather_object(left)
        common = set(left).intersection(*everywhere)
        if any(len({part[number] for part in everywhere}) > 1 for number in common):
            self._refuse_drift()

    def _refuse_buffers(self, buffers: list[tuple[str, Tensor]]) -> None:
        """Name the buffer that differs; all workers call it."""
        everywhere = self._world.all_gather_object([(name, _checksum(buffer)) for name, buffer in buffers])
        different = [entries[0][0] for entries in zip(*everywhere, strict=False) if len(set(entries)) > 1]
        self._notes.refuse(
            f"a buffer of the model, {different[0] if different else 'one'}, differs between the workers at step "
            f"{self.num_steps}: the model computes it from its batch, of which each worker has its share; it cannot be "
            "shared out"
        )

    def _refuse_drift(self) -> None:
        self._notes.refuse(
            f"the parameters differ between the workers at step {self.num_steps}: the script initialises or updates "
            "them by something that is not the same everywhere (the time, os.urandom, a loss that was read before "
            "backward()); seed it, or average it"
        )


def _checksum(parameter: Tensor) -> int:
    """Return a checksum of a parameter's first 64 values, since workers that drift apart differ in almost all."""
    some = parameter.detach().reshape(-1)[:64].double().cpu().contiguous()
    return zlib.crc32(some.numpy().tobytes())


def _is_power(number: int) -> bool:
    """Return whether a step is checked: 1, 2, 4, 8 ... and every 1,024th."""
    return number & (number - 1) == 0 or number % 1024 == 0
