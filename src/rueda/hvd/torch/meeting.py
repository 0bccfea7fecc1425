"""``barrier`` and ``join``: they block until the other ranks have called them, and exchange no tensor."""

from __future__ import annotations

from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.core import life
from rueda.hvd.core.entries import BARRIER
from rueda.hvd.torch.submissions import Reduction, make_entry, run


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Blocks until every rank of the process set has called ``barrier``."""
    run(make_entry(BARRIER, [], None, Reduction(process_set)))


def join(device: int = -1) -> int:
    """Say that this rank has no more data, and wait until the others have said so too.

    Until then it takes part in their allreduces with zeros; averages are still over all ranks.

    Args:
        device: accepted for Horovod's sake; zeros are made where the tensors are.

    Returns:
        The rank that joined last, the same on all.
    """
    return life.engine().join()
