"""The distributed optimizer of Adasum: each rank makes its own step, and the steps are combined."""

from __future__ import annotations

from typing import Any

import torch

from rueda.hvd.torch import mpi_ops as ops
from rueda.hvd.torch.distributed_optimizer import Distributed


class DistributedAdasum(Distributed):
    """Adasum combines what the optimizers would do, not what the gradients are: each rank makes its own step, and the
    differences are combined (Maleki et al., section 3)."""

    def step(self, closure: Any = None) -> Any:
        """Update the parameters by the Adasum of all ranks' updates."""
        exchange = self._exchange
        compression = exchange.compression
        parameters = exchange.named.parameters
        before = [parameter.detach().clone() for parameter in parameters]
        result = super(Distributed, self).step(closure)
        with torch.no_grad():
            compressed = [
                compression.compress(parameter.detach() - start)
                for parameter, start in zip(parameters, before, strict=True)
            ]
            exchange.bind()
            reduced = ops.grouped_allreduce(
                [small for small, _ in compressed],
                name=f"{exchange.title}.updates",
                op=ops.Adasum,
                process_set=exchange.process_set,
            )
            for parameter, start, update, (_, context) in zip(parameters, before, reduced, compressed, strict=True):
                parameter.copy_(start + compression.decompress(update, context))
        self._begin_anew()
        return result

    def _final(self, number: int) -> None:
        self._finals.append(number)

    def synchronize(self) -> None:
        """Do nothing: updates are combined in ``step()``, not gradients."""
