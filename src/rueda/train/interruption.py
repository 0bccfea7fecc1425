"""Signals during training: all workers finish the same step and write a checkpoint; then they stop or go on.

A signal reaches the workers at different times. A worker that stopped at once would leave the others blocked in a
collective. So the handler only sets a flag, and an all-reduce compares the workers' flags, at every step or about four
times a second. A long evaluation is stopped in the same way; the epoch is then evaluated when the run is resumed.
:mod:`rueda.world.signals` defines what each signal asks for.

In the same way the workers of an elastic job agree on a commit, and on a change of their number, of which each of them
learns at another moment.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import TypeVar

import torch

from rueda.jobs.stopping import Stopped, handled_signals, raise_if_caught
from rueda.world import World, elastic
from rueda.world.signals import SAVING, Request, SignalFilter

Batch = TypeVar("Batch")


class EvaluationStopped(Exception):
    """Raised on all workers when a signal, or a change of the workers, stops an evaluation in its middle."""


class Interruption:
    """Catches signals inside a ``with`` block; :meth:`agreed` returns what all workers do now."""

    def __init__(self, world: World) -> None:
        self.signal: int | None = None
        """the signal that stops the training"""
        self.commits = False
        """whether all workers commit now, as :meth:`agreed` found"""
        self.changes = False
        """whether all workers of an elastic job agree that workers leave or come"""
        self._save = False
        self._world = world
        self._signals = SignalFilter()
        self._handling = handled_signals(self._set_flag)
        self._interval = 1
        self._since = 0

    def __enter__(self) -> Interruption:
        raise_if_caught()  # by a library, while the training was prepared
        self._handling.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._handling.__exit__(None, None, None)

    def _set_flag(self, number: int, frame: FrameType | None) -> None:
        request = self._signals.request(number)
        if request is Request.SAVE:
            self._save = True
        elif request is Request.STOP:
            self.signal = number
        elif request is Request.END:
            raise Stopped(number)

    def agreed(self, seconds_per_step: float, *, due: bool = False, commit: bool = False) -> Request | None:
        """Return whether all workers save and stop, or save and go on, after this step.

        Every worker calls it after each step; flags are compared about four times a second.

        Args:
            seconds_per_step: this worker's time for a step.
            due: a checkpoint is due on this worker, as if a signal had asked for it.
            commit: a commit is due on this worker.
        """
        stop, save = self._compare(self._save or due, seconds_per_step, commit)
        if save:
            self._save = False
            self._signals.request(SAVING)  # the same signal may reach this worker only now: it has been obeyed
        return Request.STOP if stop else Request.SAVE if save else None

    def until_stopped(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Iterate over the batches of an evaluation, of which every worker has equally many.

        A signal to save and go on waits for the end of the evaluation.

        Raises:
            EvaluationStopped: a signal stops the training, or the workers of an elastic job change (``changes``); all
                workers raise it after the same batch.
        """
        self._interval, self._since = 1, 0  # a batch here may take much longer than a step
        began = time.monotonic()
        for num_done, batch in enumerate(batches, 1):
            yield batch
            stop, _ = self._compare(False, (time.monotonic() - began) / num_done)
            if stop or self.changes:
                raise EvaluationStopped
        self._interval, self._since = 1, 0

    def _compare(self, save: bool, seconds: float, commit: bool = False) -> tuple[bool, bool]:
        """Return whether any worker stops, and whether any saves; both are False where flags are not compared."""
        stop = self.signal or 0
        self.commits, self.changes = commit, elastic.updates() > 0
        if self._world.size > 1:
            self._since += 1
            if self._since < self._interval:
                self.commits = self.changes = False
                return False, False
            self._since = 0
            told = [float(stop), float(save), seconds, float(self.commits), float(self.changes)]
            found = self._world.all_reduce(torch.tensor(told, device=self._world.device), "max").tolist()
            number, any_save, slowest, any_commit, any_change = found
            self.commits, self.changes = bool(any_commit), bool(any_change)
            # All workers derive the interval from the slowest one's time, so that it is the same on all.
            self._interval = max(1, min(1000, math.ceil(0.25 / max(slowest, 1e-6))))
            stop, save = int(number), bool(any_save)
        self.signal = stop or None
        return bool(stop), save
