"""What Horovod's scripts need from the launcher; :mod:`rueda.world.launch` itself does not depend on Horovod.

- The module ``horovod``: the folder ``hvd/shim`` on the workers' ``PYTHONPATH`` (see :mod:`rueda.hvd.alias`); with
  ``--legacy-keras`` also ``tensorflow_addons`` (see :mod:`rueda.hvd.legacy_keras`).
- The variables ``HOROVOD_RANK``, ``HOROVOD_SIZE`` and so on, which scripts read before they call ``hvd.init``.
- The user's own ``HOROVOD_*`` variables, and those of TensorFlow, Keras and JAX, on every host.
- The output format of horovodrun: ``[2]<stdout>:loss 0.31``, and two files for each rank.

This module does not import torch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rueda.hvd import legacy_keras
from rueda.world.launch import EnvironmentAdditions, Host, OutputStyle

PREFIXES = (
    *("HOROVOD_", "KERAS_", "JAX_", "XLA_"),
    # Not all of TF_: Terraform's variables begin so, and some are secret.
    *("TF_CPP_", "TF_DETERMINISTIC_", "TF_ENABLE_", "TF_FORCE_", "TF_GPU_", "TF_NUM_", "TF_USE_", "TF_XLA_"),
)


def environment_additions(environ: Mapping[str, str]) -> EnvironmentAdditions:
    """Return the additions to a launch plan; ``RUEDA_HOROVOD=0`` in ``environ`` omits the module ``horovod``.

    >>> environment_additions({}).packages, environment_additions({"RUEDA_HOROVOD": "0"}).packages
    (('rueda.hvd.shim',), ())
    >>> environment_additions({"RUEDA_LEGACY_KERAS": "1"}).packages
    ('rueda.hvd.shim', 'rueda.hvd.legacy_keras.shim')
    """
    packages: tuple[str, ...] = () if environ.get("RUEDA_HOROVOD") == "0" else ("rueda.hvd.shim",)
    if environ.get(legacy_keras.VARIABLE) == "1":
        packages += (legacy_keras.PACKAGE,)
    return EnvironmentAdditions(prefixes=PREFIXES, packages=packages, per_worker=worker_variables)


def worker_variables(hosts: Sequence[Host], node: int, local_rank: int, rank: int) -> dict[str, str]:
    """Return the environment variables by which Horovod tells a worker its ranks and sizes.

    The cross rank and cross size count the hosts that have a worker with the same local rank.

    Args:
        hosts: all hosts in rank order; ``slots`` is the number of workers on each.
        node: the index of the worker's host.
        local_rank: the rank of the worker on its host.
        rank: the rank of the worker; in an elastic job it does not follow from the others.

    >>> hosts = [Host(name="a", slots=2), Host(name="b", slots=1), Host(name="c", slots=2)]
    >>> found = worker_variables(hosts, node=2, local_rank=1, rank=4)
    >>> [found[f"HOROVOD_{name}"] for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")]
    ['4', '5', '1', '2', '1', '2']
    """
    slots = [host.slots for host in hosts]
    return {
        "HOROVOD_RANK": str(rank),
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
    """The output format of horovodrun: ``[2]<stdout>:loss 0.31``, files ``rank.2/stdout`` and ``rank.2/stderr``.

    Args:
        times: whether the time precedes each prefix.

    >>> HorovodrunStyle().prefix(2, error=True, coloured=False)
    '[2]<stderr>:'
    >>> HorovodrunStyle().file(2, error=False, workers=16)
    'rank.02/stdout'
    """

    shows_filed_lines: ClassVar[bool] = True
    times: bool = False

    def prefix(self, rank: int, *, error: bool, coloured: bool) -> str:
        """Return the prefix of a line, always without colours, because programs read these lines."""
        return f"{time.asctime() if self.times else ''}[{rank}]<{_stream(error)}>:"

    def file(self, rank: int, *, error: bool, workers: int) -> str:
        """Return the name of the file of a stream; all ranks have the same number of digits."""
        return f"rank.{rank:0{len(str(workers - 1))}d}/{_stream(error)}"


def _stream(error: bool) -> str:
    return "stderr" if error else "stdout"
