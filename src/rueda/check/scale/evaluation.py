"""``--share-evaluation``: the forward passes of an evaluation are shared out, and the script sees all their rows.

What a script does with the outputs of an evaluation (sums, lists, a metric of another library) cannot be seen in
general, so its loop is left as it is: every worker draws every batch. What is shared is what costs the time, the call
of the model: each worker computes the outputs of its rows, and all of them are gathered. The script's own arithmetic
then runs on the outputs of the entire batch, on every worker, and its numbers are those of one worker, up to rounding.

A call is shared out if gradients are off, no module of the model is in training mode, and the batch in hand is an
entire one. A model may still mix the rows of its batch, or have another dimension first. So the call is made both ways
and compared: the first time for each form of arguments, and then at calls 2, 4, 8 ... of it. If they differ, if an
output has other rows than the arguments, if random numbers are drawn, if there are hooks or if a module keeps something
of its forward pass, the model is called with entire batches on every worker, and a line says so.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from rueda.check.patches import Patches
from rueda.check.scale.agreement import differing
from rueda.check.scale.batches import BatchTracker
from rueda.check.scale.examples import random_states
from rueda.check.scale.notes import Notes
from rueda.check.scale.share import Share, share_of
from rueda.data.nest import map_tensors, tensors
from rueda.world import World

_CLOSE = {torch.float64: 1e-10, torch.float32: 1e-5}  # of the largest value; others are of half precision
_HALF = 3e-2
_REFUSED = -1


class _Watched:
    """The result of a forward pass, and the reason why it cannot be shared out, as far as the pass shows it.

    Args:
        module: the model.
        call: calls it.
        fails: whether an exception of the call is raised here; else it is a reason.
    """

    def __init__(self, module: nn.Module, call: Callable[[], Any], *, fails: bool = True) -> None:
        numbers, kept = random_states(), _kept_by(module)
        self.result: Any = None
        self.reason = ""
        try:
            self.result = call()
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            if fails:
                raise
            self.reason = f"it fails on a share ({' '.join(str(error).split())[:80]})"
            return
        if random_states() != numbers:
            self.reason = "it draws random numbers"
        elif _kept_by(module) != kept:
            self.reason = "it keeps something of its forward pass"


class SharedEvaluation:
    """Replaces the call of a module.

    Args:
        world: the workers.
        tracker: knows whether the batch in hand is an entire one.
        notes: where the user is told.
    """

    def __init__(self, world: World, tracker: BatchTracker, notes: Notes) -> None:
        self._world, self._tracker, self._notes = world, tracker, notes
        self._num_calls: WeakKeyDictionary[nn.Module, dict[Any, int]] = WeakKeyDictionary()  # by the form of its call
        self._is_within = False
        self.num_calls = 0
        """number of calls of a model in an evaluation"""
        self.num_shared = 0
        """number of those that were shared out"""

    def install(self, patches: Patches) -> None:
        """Replace ``nn.Module.__call__``."""
        if self._world.size > 1:
            patches.replace(nn.Module, "__call__", self._sharing)

    def _sharing(self, original: Any) -> Any:
        def __call__(module: nn.Module, *args: Any, **options: Any) -> Any:
            if self._is_within or torch.is_grad_enabled() or torch.compiler.is_compiling():
                return original(module, *args, **options)
            rows = self._rows(module, (args, options))
            if not rows:
                return original(module, *args, **options)
            self._is_within = True
            try:
                return self._call(lambda a, o: original(module, *a, **o), module, args, options, rows)
            finally:
                self._is_within = False

        return __call__

    def _rows(self, module: nn.Module, given: Any) -> int:
        """Return the number of rows of a call that may be shared out; 0 if it may not."""
        if self._tracker.share is not None or self._tracker.num_batches == 0:
            return 0
        if next(module.parameters(), None) is None or any(one.training for one in module.modules()):
            return 0
        first = next((one for one in tensors(given) if one.dim() > 0), None)
        return 0 if first is None or len(first) < self._world.size else len(first)

    def _call(self, call: Callable[[Any, Any], Any], module: nn.Module, args: Any, options: Any, rows: int) -> Any:
        self.num_calls += 1
        if any(one._forward_hooks or one._forward_pre_hooks for one in module.modules()):
            self._say(module, "it has forward hooks, which would see a share")
            return call(args, options)
        calls = self._num_calls.setdefault(module, {})
        leaves = [(one.dim(), one.dim() > 0 and len(one) == rows, one.dtype) for one in tensors((args, options))]
        form = (tuple(leaves), tuple(options))
        if calls.get(form) == _REFUSED:
            return call(args, options)
        calls[form] = calls.get(form, 0) + 1
        compare = calls[form] & (calls[form] - 1) == 0
        whole = _Watched(module, lambda: call(args, options)) if compare else None
        if whole is not None and not self._agrees(whole.reason):
            return self._give_up(calls, form, module, whole.reason, whole.result)
        share = share_of(rows, self._world.rank, self._world.size)
        part = map_tensors(lambda one: _cut(one, share), (args, options))
        found = _Watched(module, lambda: call(*part), fails=whole is None)
        if found.reason and whole is None:
            name = type(module).__name__
            self._notes.refuse(f"{name} in evaluation: {found.reason}, but not at first; remove --share-evaluation")
        reason = found.reason or _reason_of(found.result, share)
        if not self._agrees(reason, found.result):
            result = call(args, options) if whole is None else whole.result
            return self._give_up(calls, form, module, reason, result)
        gathered = map_tensors(lambda one: self._gathered(one, rows), found.result)
        if whole is None:
            self.num_shared += 1
            return gathered
        reason = "" if _is_close(gathered, whole.result) else "its rows are not independent of each other"
        return whole.result if self._agrees(reason) else self._give_up(calls, form, module, reason, whole.result)

    def _agrees(self, reason: str, outputs: Any = ()) -> bool:
        """Return whether no worker has a reason against it, and all have outputs of one form; all of them call it."""
        form = repr([] if reason else [(one.shape[1:], one.dtype) for one in tensors(outputs)])
        return not differing(self._world, {"reason": bool(reason), "form": zlib.crc32(form.encode())}) and not reason

    def _give_up(self, calls: dict[Any, int], form: Any, module: nn.Module, reason: str, result: Any) -> Any:
        calls[form] = _REFUSED
        self._say(module, reason or "its outputs have other shapes on other workers")
        return result

    def _say(self, module: nn.Module, reason: str) -> None:
        self._notes.say(f"the evaluation of {type(module).__name__} is not shared out: {reason}")

    def _gathered(self, tensor: Tensor, rows: int) -> Tensor:
        """Return the rows of all workers in the order of the batch."""
        counts = [share_of(rows, rank, self._world.size).rows for rank in range(self._world.size)]
        missing = max(counts) - len(tensor)
        padded = torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])]) if missing else tensor
        parts = self._world.all_gather(padded.contiguous())
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def _reason_of(outputs: Any, share: Share) -> str:
    found = list(tensors(outputs))
    if found and all(one.dim() > 0 and len(one) == share.rows for one in found):
        return ""
    return "not all outputs have the batch as their first dimension"


def _cut(tensor: Tensor, share: Share) -> Tensor:
    """Return the rows of a share of a tensor that has as many as the batch; others are given to every worker."""
    if tensor.dim() == 0 or len(tensor) != share.whole:
        return tensor
    return tensor[share.low : share.low + share.rows]


def _kept_by(module: nn.Module) -> list[Any]:
    """Return what tells whether a module has kept something: its attributes, and the lengths of its lists."""
    return [entry for one in module.modules() for entry in _state_of(one)]


def _state_of(module: nn.Module) -> Iterator[Any]:
    for name, value in (*vars(module).items(), *module._buffers.items()):
        if isinstance(value, Tensor):
            yield name, id(value), None if value.is_inference() else value._version
        elif isinstance(value, (list, dict, set)) and not name.startswith("_"):
            yield name, len(value), [id(one) for one in (value.values() if isinstance(value, dict) else value)]
        elif not name.startswith("_"):
            yield name, value if isinstance(value, (bool, int, float, str)) else id(value)


def _is_close(found: Any, expected: Any) -> bool:
    """Return whether two outputs are equal up to rounding."""
    pairs = list(zip(tensors(found), tensors(expected), strict=False))
    if len(pairs) != len(list(tensors(expected))):
        return False
    for ours, theirs in pairs:
        if ours.shape != theirs.shape:
            return False
        if not theirs.is_floating_point():
            if not torch.equal(ours, theirs):
                return False
            continue
        bound = _CLOSE.get(theirs.dtype, _HALF) * float(theirs.abs().amax().nan_to_num()) if theirs.numel() else 0.0
        if not torch.allclose(ours.double(), theirs.double(), rtol=0.0, atol=bound, equal_nan=True):
            return False
    return True
