"""What Horovod's scripts need of a launcher, handed to :mod:`rueda.world.launch`, which knows nothing of Horovod.

- The module ``horovod``: the folder ``hvd/shim`` on the workers' ``PYTHONPATH`` (see :mod:`rueda.hvd.alias`).
- The variables ``HOROVOD_RANK``, ``HOROVOD_SIZE`` and so on, which scripts read before they call ``hvd.init``.
- The user's own ``HOROVOD_*`` variables on every host.
- The output of horovodrun: ``[2]<stdout>:loss 0.31``, and two files a rank.

Nothing here loads torch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rueda.world.launch import EnvironmentAdditions, Host, OutputStyle


def environment_additions(environ: Mapping[str, str]) -> EnvironmentAdditions:
    """Give the additions for a launch plan; ``RUEDA_HOROVOD=0`` in ``environ`` leaves out the module ``horovod``.

    >>> environment_additions({}).packages, environment_additions({"RUEDA_HOROVOD": "0"}).packages
    (('rueda.hvd.shim',), ())
    """
    packages = () if environ.get("RUEDA_HOROVOD") == "0" else ("rueda.hvd.shim",)
    return EnvironmentAdditions(prefixes=("HOROVOD_",), packages=packages, per_worker=worker_variables)


def worker_variables(hosts: Sequence[Host], node: int, local_rank: int) -> dict[str, str]:
    """Give a worker its ranks and sizes under Horovod's names.

    ``CROSS`` counts the hosts that have a worker with the same local rank.

    Args:
        hosts: all hosts in rank order; ``slots`` is the number of workers on each.
        node: the index of the worker's host.
        local_rank: the number of the worker on its host.

    >>> hosts = [Host(name="a", slots=2), Host(name="b", slots=1), Host(name="c", slots=2)]
    >>> found = worker_variables(hosts, node=2, local_rank=1)
    >>> [found[f"HOROVOD_{name}"] for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")]
    ['4', '5', '1', '2', '1', '2']
    """
    slots = [host.slots for host in hosts]
    return {
        "HOROVOD_RANK": str(sum(slots[:node]) + local_rank),
        "HOROVOD_SIZE": str(sum(slots)),
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(slots[node]),
        "HOROVOD_CROSS_RANK": str(sum(count > local_rank for count in slots[:node])),
        "HOROVOD_CROSS_SIZE": str(sum(count > local_rank for count in slots)),
        "HOROVOD_HOSTNAME": hosts[node].name,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }


@dataclass(frozen=True, kw_only=True)
class HorovodrunStyle(OutputStyle):
    """Prefixes and files as horovodrun has them: ``[2]<stdout>:loss 0.31``, ``rank.2/stdout`` and ``rank.2/stderr``.

    Args:
        times: put the time before each prefix.

    >>> HorovodrunStyle().prefix(2, error=True, coloured=False)
    '[2]<stderr>:'
    >>> HorovodrunStyle().file(2, error=False, workers=16)
    'rank.02/stdout'
    """

    times: bool = False

    def prefix(self, rank: int, *, error: bool, coloured: bool) -> str:
        """Give the prefix without colours, since programs read these lines."""
        return f"{time.asctime() if self.times else ''}[{rank}]<{_stream(error)}>:"

    def file(self, rank: int, *, error: bool, workers: int) -> str:
        """Name a file for each stream; ranks have equally many digits."""
        return f"rank.{rank:0{len(str(workers - 1))}d}/{_stream(error)}"

    @property
    def shows_what_is_filed(self) -> bool:
        """Lines are shown, with or without files."""
        return True


def _stream(error: bool) -> str:
    return "stderr" if error else "stdout"
