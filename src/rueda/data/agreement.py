"""Workers agree on whether there is another batch, without waiting for each other.

Whether a stream has another batch is known only when it is read. Each worker reads one batch ahead, tells the others
whether it found one, and asks for their answers only when the next batch is wanted: the messages travel while the
training computes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from rueda.data.stream import Ranked


class Agreement:
    """A question that all workers answer with yes or no.

    Args:
        world: the workers; a substitute without a process group agrees with itself.
        by_any: the common answer is yes if any worker says so; else only if all do.

    >>> class Alone:
    ...     rank, size = 0, 1
    >>> agreement = Agreement(Alone())
    >>> agreement.tell(True)
    >>> agreement.answer()
    True
    """

    def __init__(self, world: Ranked, *, by_any: bool = False) -> None:
        communicates = world.size > 1 and hasattr(world, "all_reduce") and dist.is_initialized()
        self._operation = dist.ReduceOp.MAX if by_any else dist.ReduceOp.MIN
        self._device: torch.device | None = None
        if communicates:
            on_host = "cpu:" in str(dist.get_backend_config())
            self._device = torch.device("cpu") if on_host else getattr(world, "device", None)
        self._flag = torch.zeros(0)
        self._work: Any = None
        self._answer: bool | None = None

    def tell(self, mine: bool) -> None:
        """Tell this worker's answer; every worker must call it as often."""
        if self._device is None:
            self._answer = mine
            return
        self._answer = None
        self._flag = torch.tensor([int(mine)], dtype=torch.int32, device=self._device)
        self._work = dist.all_reduce(self._flag, self._operation, async_op=True)

    def answer(self) -> bool:
        """Return the common answer to the last question, the same on all workers."""
        if self._answer is None:
            self._work.wait()
            self._answer = bool(self._flag.item())
        return self._answer
