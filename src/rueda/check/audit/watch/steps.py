"""Optimizer steps: parameters, gradients before and after the exchange, and learning rates, as each worker has them.

A *local* gradient is what the backward pass computed here, before any exchange: a hook of the parameter sees it. The
*final* gradient is what the optimizer gets, or, if gradients are clipped, what the clipping gets. Relative to the mean
of the local gradients of all N workers, the final one is 1 if they are averaged, N if they are summed, 1/N if they
are divided twice; and if each worker's final gradient is its own local one, they are not exchanged at all.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from rueda.check.audit.watch.counters import Counters
from rueda.check.audit.watch.digest import digest, doubles, some
from rueda.check.audit.watch.journal import Journal
from rueda.check.audit.watch.place import place
from rueda.check.patches import Patches

FIRST = 8
"""steps of each optimizer that are noted entirely; later only parameters, at step 16, 32, 64, ..."""
_PARAMETERS, _VALUES = 24, 24  # whose gradients are noted, and values of each


class StepWatch:
    """Notes the steps of every optimizer.

    Args:
        journal: where they are noted.
        counters: what has happened so far.
    """

    def __init__(self, journal: Journal, counters: Counters) -> None:
        self._journal, self._counters = journal, counters
        self._known: weakref.WeakKeyDictionary[Any, _Watched] = weakref.WeakKeyDictionary()
        self._all: list[_Watched] = []  # also of an optimizer that is gone since another one has taken it over
        self._numbers: dict[str, int] = {}
        self.first: _Watched | None = None
        self.after_step: list[Any] = []
        self.before_step: list[Any] = []

    def install(self, patches: Patches) -> None:
        """Register torch's global hooks, and replace what changes gradients and rates."""
        patches.replace(Optimizer, "__init__", self._making)
        patches.on_undo(register_optimizer_step_pre_hook(self._before).remove)
        patches.on_undo(register_optimizer_step_post_hook(self._after).remove)
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
                patches.replace(owner, name, self._clipping)
        patches.replace(torch.amp.GradScaler, "scale", self._scaling)
        patches.replace(LRScheduler, "step", self._scheduling)

    def _making(self, original: Any) -> Any:
        def make(optimizer: Any, *args: Any, **options: Any) -> None:
            original(optimizer, *args, **options)
            with self._journal.careful:
                if optimizer not in self._known:
                    where = place()
                    number = self._numbers[where] = self._numbers.get(where, -1) + 1
                    watched = _Watched(f"{where}#{number}", where, optimizer, self._journal)
                    self._known[optimizer] = watched
                    self._all.append(watched)
                    self._counters.optimizers += 1
                    self.first = self.first or watched

        return make

    def _find(self, optimizer: Any) -> _Watched | None:
        """Return what is known of an optimizer; one that wraps another, as Horovod's does, is the one it wraps."""
        found = self._known.get(optimizer)
        if found is None:
            ids = {id(one) for group in optimizer.param_groups for one in group["params"]}
            found = next((one for one in self._all if one.has(ids)), None)
            if found is not None:
                self._known[optimizer] = found
        return found

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        with self._journal.careful:
            self._begin(optimizer)

    def _begin(self, optimizer: Any) -> None:
        watched = self._find(optimizer)
        if watched is None:
            return
        watched.depth += 1
        if watched.depth == 1:
            for call in self.before_step:
                call()
        if watched.is_noted(watched.steps + 1):
            if watched.steps == 0 and watched.depth == 1:
                watched.watch_gradients(optimizer)
                where = place()
                self._journal.note("step", **watched.record(optimizer, where, self._counters))  # number 0: the start
            if watched.depth == 1:
                watched.take_before(optimizer)
            # The innermost step of a wrapped optimizer has the final gradients.
            watched.take(self._counters.loss_scale)

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        with self._journal.careful:
            self._end(optimizer)

    def _end(self, optimizer: Any) -> None:
        watched = self._known.get(optimizer)
        if watched is None:
            return
        watched.depth -= 1
        if watched.depth:
            return
        watched.steps += 1
        self._counters.steps += 1
        if watched.is_noted(watched.steps):
            self._journal.note("step", **watched.record(optimizer, place(), self._counters))
        watched.forget()
        watched.backwards = self._counters.backwards
        for call in self.after_step:
            call()

    def _clipping(self, original: Any) -> Any:
        def clip(parameters: Any, *args: Any, **options: Any) -> Any:
            given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            with self._journal.careful:
                ids = {id(one) for one in given}
                for watched in self._all:
                    if watched.is_noted(watched.steps + 1):
                        watched.take_clipped(ids, self._counters.loss_scale)
            return original(given, *args, **options)

        return clip

    def _scaling(self, original: Any) -> Any:
        def scale(scaler: Any, outputs: Any) -> Any:
            if self.first is not None and self.first.steps < FIRST:
                result = original(scaler, outputs)
                self._counters.loss_scale = float(scaler.get_scale())
                return result
            return original(scaler, outputs)

        return scale

    def _scheduling(self, original: Any) -> Any:
        def step(scheduler: Any, *args: Any, **options: Any) -> Any:
            optimizer = getattr(scheduler, "optimizer", None)
            watched = self._known.get(optimizer) if isinstance(optimizer, Optimizer) else None
            # Accelerate steps a schedule once for each worker on purpose, since it is written for one.
            by_design = "accelerate" in sys._getframe(1).f_code.co_filename
            if watched is not None and watched.steps and watched.is_noted(watched.steps + 1) and not by_design:
                watched.scheduled[id(scheduler)] = watched.scheduled.get(id(scheduler), 0) + 1
                watched.schedule_place = place()
            return original(scheduler, *args, **options)

        return step


class _Watched:
    """An optimizer."""

    def __init__(self, name: str, made: str, optimizer: Any, journal: Journal) -> None:
        self.name, self.made, self._journal = name, made, journal
        self.steps, self.depth, self.backwards = 0, 0, 0
        self._before: list[int] = []
        self.scheduled: dict[int, int] = {}
        self.schedule_place = ""
        self._local: dict[int, Tensor] = {}
        self._final: dict[int, Tensor] = {}
        self._clipped: set[int] = set()
        self._scale = 1.0
        self._handles: list[Any] = []
        self._chosen: list[weakref.ref[Tensor]] = []
        self.watch_gradients(optimizer)

    def is_noted(self, step: int) -> bool:
        """Return whether a step is noted: the first ones, and then 16, 32, 64, ..."""
        return step <= FIRST or (step & (step - 1)) == 0

    def _parameters(self, optimizer: Any) -> list[Tensor]:
        return [one for group in optimizer.param_groups for one in group["params"]]

    def has(self, ids: set[int]) -> bool:
        """Return whether the parameters with these identities are this optimizer's."""
        alive = self._alive()
        return bool(alive) and all(id(one) in ids for one in alive)

    def device(self) -> torch.device:
        """Return the device of the parameters whose gradients are watched."""
        return next((one.device for one in self._alive()), torch.device("cpu"))

    # Gradients.

    def watch_gradients(self, optimizer: Any) -> None:
        """Register hooks that see the local gradients of some parameters."""
        parameters = [one for one in self._parameters(optimizer) if one.requires_grad and not is_sharded(one)]
        step = max(1, len(parameters) // _PARAMETERS)
        have = {id(ref()) for ref in self._chosen}
        for one in parameters[::step][:_PARAMETERS]:
            if id(one) not in have:
                self._chosen.append(weakref.ref(one))
                handle = one.register_hook(self._hook(weakref.ref(one)))  # type: ignore[no-untyped-call]
                self._handles.append(handle)

    def _hook(self, reference: weakref.ref[Tensor]) -> Any:
        def see(gradient: Tensor) -> None:
            parameter = reference()
            if parameter is None or gradient.is_sparse:
                return
            with self._journal.careful:
                values = doubles(some(gradient, _VALUES))
                known = self._local.get(id(parameter))
                accumulates = known is not None and parameter.grad is not None and bool(parameter.grad.any())
                self._local[id(parameter)] = known + values if accumulates and known is not None else values

        return see

    def take_clipped(self, ids: set[int], scale: float) -> None:
        """Keep the gradients that are about to be clipped, if they have not been clipped already."""
        chosen = [one for one in self._alive() if id(one) in ids and id(one) not in self._clipped]
        self._keep(chosen, scale)
        self._clipped |= {id(one) for one in chosen}

    def take_before(self, optimizer: Any) -> None:
        """Keep the digests of the parameters: ranks that average them from time to time have equal ones only here."""
        self._before = [digest(one) for one in self._parameters(optimizer) if not is_sharded(one)]

    def take(self, scale: float) -> None:
        """Keep the gradients that the optimizer gets, except those that were kept before they were clipped."""
        self._keep([one for one in self._alive() if id(one) not in self._clipped], scale)

    def _keep(self, parameters: list[Tensor], scale: float) -> None:
        for one in parameters:
            if one.grad is not None and not one.grad.is_sparse:
                self._final[id(one)] = doubles(some(one.grad, _VALUES))
        self._scale = scale

    def _alive(self) -> list[Tensor]:
        return [one for one in (ref() for ref in self._chosen) if one is not None]

    def forget(self) -> None:
        """Begin the next step; after the first ones the hooks are removed."""
        self._final.clear()
        self._clipped.clear()
        self.scheduled.clear()
        if self.steps >= FIRST and self._handles:
            for handle in self._handles:
                handle.remove()
            self._handles.clear()
            self._local.clear()
            self._chosen.clear()

    def record(self, optimizer: Any, where: str, counters: Counters) -> dict[str, Any]:
        """Return what is noted of a step; the parameters are those after it."""
        parameters = self._parameters(optimizer)
        names = [counters.names.get(one, f"parameter {i}") for i, one in enumerate(parameters)]
        plain = [(name, one) for name, one in zip(names, parameters, strict=True) if not is_sharded(one)]
        position = {id(one): i for i, one in enumerate(parameters)}
        scheduled = max(self.scheduled.values(), default=0)
        return {
            "optimizer": self.name, "made": self.made, "where": where, "number": self.steps,
            "rates": [float(group["lr"]) for group in optimizer.param_groups if "lr" in group],
            "names": [name for name, _ in plain], "shapes": [list(one.shape) for _, one in plain],
            "before": self._before, "parameters": [digest(one) for _, one in plain],
            "values": [_numbers(some(one, 8)) for _, one in plain],
            "sharded": len(plain) < len(parameters),
            "local": {str(position[key]): _numbers(value) for key, value in self._local.items() if key in position},
            "final": {str(position[key]): _numbers(value) for key, value in self._final.items() if key in position},
            "scale": self._scale, "scheduled": scheduled, "schedule_place": self.schedule_place,
            "passes": counters.backwards - self.backwards,
        }  # fmt: skip


def is_sharded(parameter: Tensor) -> bool:
    """Return whether a parameter is a part that differs between workers by design."""
    tensors = sys.modules.get("torch.distributed.tensor")  # a script that shards has imported it; it takes 0.8 s
    return (tensors is not None and isinstance(parameter, tensors.DTensor)) or hasattr(parameter, "_is_flat_param")


def _numbers(values: Tensor) -> list[float]:
    return [float(one) for one in doubles(values)]
