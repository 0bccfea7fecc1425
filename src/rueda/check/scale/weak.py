"""Weak scaling: each worker keeps the script's batch, so the global batch is N times as large.

The sampler's batches are taken N at a time, and shared out. Three things follow, which the script does not know of:

- **The rate** is multiplied by the factor of a scaling rule (:mod:`rueda.optim.scaling`) during each step alone, so
  that the script's schedulers and printed rates keep their own values. It rises to that factor in a gradual warm-up
  (:class:`rueda.optim.schedules.GradualWarmup`).
- **Schedules** are counted in examples: a scheduler that is stepped after every update advances by as many steps as
  the serial script would have made, N as a rule. One that is stepped once an epoch is left alone.
- ``len(loader)`` stays the serial script's, since schedules are computed from it.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from rueda.check.patches import Patches
from rueda.check.scale.batches import BatchTracker
from rueda.check.scale.notes import Notes
from rueda.optim.scaling import rate_factor, warmup_factor
from rueda.optim.schedules import GradualWarmup


class WeakScaling:
    """Adapts rates and schedules to a batch that is N times as large.

    Args:
        size: the number of workers.
        tracker: knows how many of the script's batches are in the last one, and how many epochs are over.
        notes: where the user is told.
        scaling: the scaling rule.
        warmup_epochs: the length of the warm-up, which a rule may prolong.
    """

    def __init__(self, size: int, tracker: BatchTracker, notes: Notes, scaling: str, warmup_epochs: float) -> None:
        self._tracker, self._notes = tracker, notes
        self._factor = rate_factor(scaling, size)
        self._warmup = GradualWarmup(1.0, self._factor, warmup_epochs * warmup_factor(scaling, size))
        self._scaling, self._size = scaling, size
        self._kept: list[Any] = []
        self._num_steps: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # by optimizer
        self._seen: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # by scheduler: its optimizer's at its last step

    def install(self, patches: Patches) -> None:
        """Follow the optimizers and the schedulers."""
        patches.on_undo(register_optimizer_step_pre_hook(self._before).remove)
        patches.on_undo(register_optimizer_step_post_hook(self._after).remove)
        patches.replace(LRScheduler, "step", self._counting_examples)
        self._notes.say(
            f"weak scaling: a batch of the script for each of {self._size} workers; rate x {self._factor:.3g} "
            f"({self._scaling}) after a warm-up of {self._warmup.num_steps:g} epochs; schedules count examples"
        )

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._kept = [group["lr"] for group in optimizer.param_groups]
        if self._tracker.last_shared:
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * self._warmup(self._tracker.epochs)

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._num_steps[optimizer] = self._num_steps.get(optimizer, 0) + 1
        for group, rate in zip(optimizer.param_groups, self._kept, strict=False):
            group["lr"] = rate

    def _counting_examples(self, original: Any) -> Any:
        def step(scheduler: Any, epoch: int | None = None) -> None:
            num_steps = self._num_steps.get(scheduler.optimizer, 0)
            since = num_steps - self._seen.get(scheduler, num_steps)
            self._seen[scheduler] = num_steps
            if epoch is not None:
                original(scheduler, epoch)
                return
            for _ in range(self._tracker.num_merged if since == 1 else 1):
                original(scheduler)

        return step
