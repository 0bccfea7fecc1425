"""Virtual workers in lock-step: a rehearsal of steps that gather the tensors of all workers.

A step that calls :func:`rueda.gather` needs tensors that the other workers compute in the same step. Real workers wait
for each other. In a rehearsal each worker's step runs until it calls ``gather`` and is then abandoned; once the tensors
of all workers are known, all steps are run again from their start, with the same random numbers, and ``gather`` returns
what it could not return before. All tensors belong to one graph, so one backward pass from the sum of all losses gives
the gradient that the all-reduce of real workers gives. A step with k gathers is run k + 1 times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from rueda.errors import TaskError
from rueda.world.gathering import gathering_by, own_first

Result = TypeVar("Result")


class GatherNeeded(BaseException):  # not an Exception: a step that catches those must not catch it
    """A virtual worker has called ``gather``, and the tensors of the others are not known yet."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.tensor = tensor


def refuse(tensor: Tensor) -> Tensor:
    """Replace ``gather`` where workers do not run in lock-step: tell the rehearsal that they have to."""
    raise GatherNeeded(tensor)


def run_in_lock_step(run: Callable[[int], Result], num_workers: int) -> list[Result]:
    """Run the steps of all virtual workers, and return their results.

    Args:
        run: runs the step of a rank from its start, with its random numbers.
        num_workers: the number of virtual workers.

    Raises:
        TaskError: some steps call ``gather`` more often than others, or with tensors of another shape; real workers
            would wait for each other for ever.
    """
    gathered: list[list[Tensor]] = []  # of each call of gather: the tensors of all ranks
    while True:
        done: list[Result] = []
        waiting: list[Tensor] = []
        for rank in range(num_workers):
            with gathering_by(_Gather(gathered, rank)):
                try:
                    done.append(run(rank))
                except GatherNeeded as needed:
                    waiting.append(needed.tensor)
        if not waiting:
            return done
        shapes = sorted({tuple(tensor.shape) for tensor in waiting})
        if done or len(shapes) > 1:
            got = f"{len(waiting)} of {num_workers} workers" if done else " and ".join(str(list(one)) for one in shapes)
            expected = "all workers to gather equally often, tensors of one shape"
            raise TaskError("gather", expected=expected, got=got, do="gather in every step, and pad to one shape")
        gathered.append(waiting)


class _Gather:
    """The ``gather`` of one rank: it returns what is known of its calls, in their order."""

    def __init__(self, gathered: list[list[Tensor]], rank: int) -> None:
        self._gathered, self._rank, self._num_calls = gathered, rank, 0

    def __call__(self, tensor: Tensor) -> Tensor:
        number, self._num_calls = self._num_calls, self._num_calls + 1
        if number == len(self._gathered):
            raise GatherNeeded(tensor)
        parts = list(self._gathered[number])
        parts[self._rank] = tensor  # its own, which was computed again, as the rest of this step needs it
        return own_first(parts, self._rank)
