"""Parameters that several stages of a pipeline share, such as an embedding that is also the output layer.

Each worker that has such a parameter has a copy of it. The gradient of a shared parameter is the sum of what its uses
contribute, so the workers add up their gradients after every step (as Shoeybi et al. 2019, arXiv:1909.08053, do); equal
gradients and equal optimizers keep the copies equal.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from rueda.train.parallel.stages import Stage


def owners_of(stages: Sequence[Stage], workers: int) -> dict[int, list[int]]:
    """Return the workers of the pipeline that have a parameter, by its id, in order; stage s is of s mod p."""
    found: dict[int, set[int]] = {}
    for number, stage in enumerate(stages):
        for parameter in stage.parameters():
            found.setdefault(id(parameter), set()).add(number % workers)
    return {key: sorted(ranks) for key, ranks in found.items()}


class TiedParameters:
    """The shared parameters of one worker, and the groups of workers that share them.

    Args:
        parameters: all parameters of the model, before a worker drops those of the others.
        owners: the workers that have each of them (:func:`owners_of`).
        group: the process group of the pipeline; all workers of the job must make this object at the same time.
        members: the global ranks of all pipelines of the job, each in the order of its stages.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        owners: dict[int, list[int]],
        group: dist.ProcessGroup | None,
        members: Sequence[Sequence[int]],
    ) -> None:
        rank = dist.get_rank(group)
        self._shared: list[tuple[nn.Parameter, dist.ProcessGroup]] = []
        self.is_counted = {key: ranks[0] == rank for key, ranks in owners.items()}
        """by id of a parameter, whether this worker counts it in norms: the first of those that share it"""
        groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        for ranks in sorted({tuple(ranks) for ranks in owners.values() if len(ranks) > 1}):
            for pipeline in members:  # every worker must make every group
                made = dist.new_group([pipeline[one] for one in ranks])
                if dist.get_rank() in [pipeline[one] for one in ranks]:
                    groups[ranks] = made
        for parameter in parameters:
            found = groups.get(tuple(owners[id(parameter)]))
            if found is not None:
                self._shared.append((parameter, found))

    def add_gradients(self) -> None:
        """Sum the gradients of each shared parameter over the workers that share it."""
        for parameter, group in self._shared:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=group)
