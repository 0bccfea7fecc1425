"""Which losses have been compared with the serial script's, counted alike on all workers.

A script may have several losses and optimizers (a GAN), or another loss after some epochs. The first steps of each kind
of loss and optimizer are compared; the reference ends when :data:`WINDOW` steps have shown nothing new. A kind that
appears later cannot be compared any more: its batches are not shared out from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

WINDOW = 2
"""shared steps without a new kind, after which the reference ends"""
LONG_WINDOW = 8
"""the same while an optimizer has made no step yet: that of a GAN's generator may wait for several of the other's"""

WEIGHTED = ", weighted"
"""ending of the kind of a loss whose shares did not weigh alike; where they happen to, it is as right"""


class LossLedger:
    """Decides which steps are compared, and whether a kind of loss is one of those.

    Args:
        num_compared_each: the number of steps of each kind that are compared; 0: nothing is, and all are taken for
            right.
        num_optimizers: returns the number of optimizers that the script has created.

    >>> ledger, optimizer = LossLedger(1), LossLedger(0)
    >>> def step(kind: str) -> bool:
    ...     return ledger.knows(kind) and ledger.compares(optimizer, shared=True)
    >>> step("Mean"), step("Mean"), [step("Mean") for _ in range(WINDOW)][-1], ledger.is_over
    (True, False, False, True)
    >>> ledger.knows("Mean"), ledger.knows("Mean Topk")
    (True, False)
    """

    def __init__(self, num_compared_each: int, num_optimizers: Callable[[], int] = lambda: 1) -> None:
        self._num_each, self._num_all = num_compared_each, num_optimizers
        self._optimizers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._num_compared: dict[tuple[int, tuple[str, ...]], int] = {}
        self._since_step: set[str] = set()
        self._known: set[str] = set()
        self._num_without_new = 0
        self._is_over = num_compared_each == 0
        self.num_shared_steps = 0
        """number of steps with shared gradients"""

    @property
    def is_over(self) -> bool:
        """Whether nothing is compared any more."""
        return self._is_over

    @property
    def num_compared(self) -> int:
        """Number of steps that were compared."""
        return sum(self._num_compared.values())

    def knows(self, kind: str) -> bool:
        """Note a loss of a shared batch; return whether its kind was compared, or will be at the next step."""
        if self.is_over:
            return self._num_each == 0 or not self._known.isdisjoint((kind, kind + WEIGHTED))
        self._since_step.add(kind)
        return True

    def compares(self, optimizer: Any, *, shared: bool) -> bool:
        """Note the step of an optimizer; return whether its gradients are compared."""
        kinds, self._since_step = tuple(sorted(self._since_step)), set()
        self.num_shared_steps += shared
        if not shared or self.is_over:
            return False
        key = (self._optimizers.setdefault(optimizer, len(self._optimizers)), kinds)
        found = self._num_compared.get(key, 0)
        if found >= self._num_each:
            self._num_without_new += 1
            window = LONG_WINDOW if self._num_all() > len(self._optimizers) else WINDOW
            self._is_over = self._num_without_new >= window
            return False
        self._num_compared[key] = found + 1
        self._known.update(kinds)
        self._num_without_new = 0
        return True
