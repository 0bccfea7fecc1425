"""Whether this process is a member of an elastic job, and the variables by which its agent tells it.

``RANK``, ``WORLD_SIZE`` and the others are those of any job; they change with each generation, in ``os.environ``.
``TORCHELASTIC_RESTART_COUNT`` is the number of the generation, so that programs which do not know of generations never
read the keys that an earlier one left in the store.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

PREFIX = "RUEDA_ELASTIC_"
MEMBER = PREFIX + "MEMBER"
"""the number of this process in the job, from 0; a process that replaces another one has a new number"""
PORT = PREFIX + "PORT"
"""the port on which the agent of this host listens, on its loopback interface"""
GENERATION = PREFIX + "GENERATION"
PENDING = PREFIX + "PENDING"
"""set if the process belongs to no generation yet: its rank is a guess, and it has to ask for the real one"""
SLOT = PREFIX + "SLOT"
"""the number of this process on its host, which it keeps for life, unlike its local rank"""
SECONDS = PREFIX + "SECONDS"
"""the time-out of the job (``--timeout``)"""


def is_elastic(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether an elastic job started this process.

    >>> is_elastic({"RANK": "0", "WORLD_SIZE": "2"}), is_elastic({"RUEDA_ELASTIC_MEMBER": "0"})
    (False, True)
    """
    return MEMBER in environ


def is_pending(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process still has to join a generation."""
    return is_elastic(environ) and bool(environ.get(PENDING))


def generation(environ: Mapping[str, str] = os.environ) -> int:
    """Return the number of this process's generation, from 0; 0 in a job that is not elastic.

    >>> generation({}), generation({"RUEDA_ELASTIC_GENERATION": "3"})
    (0, 3)
    """
    return int(environ.get(GENERATION) or 0)


def slot(environ: Mapping[str, str], local_rank: int) -> int:
    """Return the number that chooses this process's GPU: its slot, or in a job that is not elastic its local rank.

    >>> slot({}, 1), slot({"RUEDA_ELASTIC_SLOT": "2"}, 1)
    (1, 2)
    """
    return int(environ.get(SLOT) or local_rank)


def enter(variables: Mapping[str, str | None], environ: MutableMapping[str, str] = os.environ) -> None:
    """Take over the variables of a new generation; None removes one.

    >>> environ = {"RUEDA_ELASTIC_PENDING": "1", "RANK": "3"}
    >>> enter({"RUEDA_ELASTIC_PENDING": None, "RANK": "1"}, environ)
    >>> environ
    {'RANK': '1'}
    """
    for name, value in variables.items():
        if value is None:
            environ.pop(name, None)
        else:
            environ[name] = value
