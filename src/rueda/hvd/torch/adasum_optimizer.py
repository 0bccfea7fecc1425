"""The distributed optimizer of Adasum, which combines the ranks' parameter updates instead of their gradients."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from rueda.hvd.torch import mpi_ops as ops
from rueda.hvd.torch.distributed_optimizer import Distributed


class DistributedAdasum(Distributed):
    """Each rank runs the wrapped optimizer on its own gradients, and Adasum combines the resulting updates.

    Reference: Maleki et al., "Scaling Distributed Training with Adaptive Summation", section 3.
    """

    def step(self, closure: Any = None) -> Any:
        """Update the parameters by the Adasum of all ranks' updates."""
        if self._alone:
            return super(Distributed, self).step(closure)
        reducer = self._reducer
        parameters = reducer.named.parameters
        before = [parameter.detach().clone() for parameter in parameters]
        result = super(Distributed, self).step(closure)
        with torch.no_grad():
            updates = [parameter.detach() - start for parameter, start in zip(parameters, before, strict=True)]
            reducer.bind()
            reduced = ops.grouped_allreduce(
                updates,
                name=f"{reducer.name}.updates",
                compression=reducer.compression,
                op=ops.Adasum,
                process_set=reducer.process_set,
            )
            for parameter, start, update in zip(parameters, before, reduced, strict=True):
                parameter.copy_(start + update)
        self._reset_counts()
        return result

    def _on_final(self, number: int) -> None:
        self._finals.append(number)

    def synchronize(self) -> None:
        """Do nothing: ``step()`` combines updates, so no gradients are reduced."""

    def skip_synchronize(self) -> NoReturn:
        """Refuse, as Horovod does: the update itself is what the ranks combine."""
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer; call step() alone")
