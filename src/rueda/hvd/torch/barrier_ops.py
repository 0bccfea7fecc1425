"""``barrier`` and ``join``: they block until the other ranks have called them, and exchange no tensor."""

from __future__ import annotations

import torch

from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.core import lifecycle
from rueda.hvd.core.entries import BARRIER
from rueda.hvd.torch.collective_entries import Reduction, make_entry, run


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Block until every rank of the process set has called ``barrier``."""
    run(make_entry(BARRIER, [], None, Reduction(process_set)))


def join(device: int = -1) -> int:
    """Announce that this rank has no more data, and block until every rank has called ``join``.

    Until then this rank contributes zeros to the other ranks' all-reduces; averages still divide by the number of all
    ranks.

    Args:
        device: the GPU on which the zeros are created; -1: the one of this rank's last collective.

    Returns:
        The rank that joined last, which is the same on all ranks.
    """
    engine = lifecycle.engine()
    if device >= 0 and torch.cuda.is_available():
        engine.groups.device = torch.device("cuda", device)
    return engine.join()
