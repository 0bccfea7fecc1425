"""Calls of the model in training: batch norm's statistics, random numbers, losses and their targets."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from rueda.check.audit.watch.counters import Counters
from rueda.check.audit.watch.digest import generators
from rueda.check.audit.watch.journal import Journal
from rueda.check.audit.watch.place import place
from rueda.check.audit.watch.steps import FIRST
from rueda.check.patches import Patches

_LOSSES = (
    *("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"),
    *("binary_cross_entropy_with_logits", "kl_div", "gaussian_nll_loss", "poisson_nll_loss"),
)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)  # not SyncBatchNorm, which is no subclass of these


class ModuleWatch:
    """Notes what the modules of the first training steps do.

    Args:
        journal: where it is noted.
        counters: what has happened so far.
    """

    def __init__(self, journal: Journal, counters: Counters) -> None:
        self._journal, self._counters = journal, counters
        self._depth, self._call = 0, ""
        self._batch_norms: dict[str, int] = {}
        self._losses: list[tuple[str, str, int, Tensor]] = []
        self._undo: list[Callable[[], None]] = []
        self._states: dict[str, str] = {}
        self._draws = 0

    def install(self, patches: Patches) -> None:
        """Register torch's global hooks of modules; :meth:`after_step` removes them once the first steps are over."""
        self._undo = [
            register_module_forward_pre_hook(self._before).remove,
            register_module_forward_hook(self._after, always_call=True).remove,
        ]
        own = Patches()
        for name in _LOSSES:
            own.replace(functional, name, self._losing(name))
        own.replace(Tensor, "backward", self._going_back)
        self._undo.append(own.undo)
        patches.on_undo(self._remove)
        self._journal.on_finish(self._finish)

    def after_step(self) -> None:
        """Stop after the first steps: a global hook costs microseconds at every call of every module."""
        if self._counters.steps >= 2 * FIRST:
            self._remove()

    def _remove(self) -> None:
        while self._undo:
            self._undo.pop()()

    # What torch.compile traces is left alone: a graph has no place for notes.

    def _before(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        with self._journal.careful:
            self._see_call(module, args)

    def _see_call(self, module: nn.Module, args: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            self._call = place()
            for name, parameter in module.named_parameters():
                self._counters.names.setdefault(parameter, name.removeprefix("module."))
            self._states = generators() if module.training and torch.is_grad_enabled() else {}
        is_batch_norm = isinstance(module, _BATCH_NORMS) and args and isinstance(args[0], Tensor)
        if is_batch_norm and module.training and torch.is_grad_enabled():
            self._batch_norms[self._call] = min(self._batch_norms.get(self._call, 1 << 40), len(args[0]))

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._depth = max(0, self._depth - 1)
        if self._depth or not self._states or self._draws >= FIRST:
            return
        with self._journal.careful:
            after = generators()
            drawn = {name: state for name, state in self._states.items() if after[name] != state}
            if drawn:
                self._draws += 1
                self._journal.note("draw", number=self._draws, states=drawn, where=self._call)

    def _losing(self, name: str) -> Any:
        def replaced(original: Any) -> Any:
            signature = inspect.signature(original)

            def loss(*args: Any, **options: Any) -> Any:
                value = original(*args, **options)
                if not torch.compiler.is_compiling() and isinstance(value, Tensor) and value.requires_grad:
                    with self._journal.careful:
                        self._see_loss(name, value, signature.bind(*args, **options).arguments)
                return value

            return loss

        return replaced

    def _see_loss(self, name: str, value: Tensor, arguments: dict[str, Any]) -> None:
        target = arguments["target"]
        if isinstance(target, Tensor):
            reduction = arguments.get("reduction", "mean")
            ignored = arguments.get("ignore_index", -100)
            is_index = name in ("cross_entropy", "nll_loss") and not target.is_floating_point()
            count = int((target != ignored).sum()) if is_index else target.shape[0] if target.dim() else 1
            self._losses.append((name, reduction, count, value.detach()))

    def _going_back(self, original: Any) -> Any:
        def backward(root: Tensor, *args: Any, **options: Any) -> None:
            if not torch.compiler.is_compiling():
                self._counters.backwards += 1
                with self._journal.careful:
                    self._see_backward(root)
            original(root, *args, **options)

        return backward

    def _see_backward(self, root: Tensor) -> None:
        seen, self._losses = self._losses, []
        value = float(root.detach().double().sum()) / self._counters.loss_scale
        self._journal.note(
            "backward", value=value, where=place(), rows=self._counters.rows, step=self._counters.steps,
            losses=[[name, reduction, count, float(loss.double().sum())] for name, reduction, count, loss in seen],
        )  # fmt: skip

    def _finish(self) -> None:
        for where, examples in self._batch_norms.items():
            self._journal.note("batch_norm", where=where, examples=examples)
