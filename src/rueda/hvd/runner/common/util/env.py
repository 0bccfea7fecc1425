"""Functions that read a worker's environment variables, as ``horovod.runner.common.util.env``."""

from __future__ import annotations

import os
import re
from typing import Any

from rueda.errors import WorldError
from rueda.world.identity import identify

# A path makes this a package, so that `from ... import` of a missing name asks the finder of rueda.hvd.alias, which
# raises an error that explains it.
__path__: list[str] = []
LOG_LEVEL_STR = ["FATAL", "ERROR", "WARNING", "INFO", "DEBUG", "TRACE"]
IGNORE_REGEXES = {"BASH_FUNC_.*", "OLDPWD", ".*CUDA_VISIBLE_DEVICES", "_HOROVOD_SECRET_KEY"}


def is_exportable(v: str) -> bool:
    """Return whether a variable may be sent to another host.

    >>> is_exportable("OMP_NUM_THREADS"), is_exportable("OLDPWD")
    (True, False)
    """
    return not any(re.match(pattern, v) for pattern in IGNORE_REGEXES)


def get_env_rank_and_size() -> tuple[int, int]:
    """Return the rank and the number of workers before ``init()``, as the launcher set them; (0, 1) without one."""
    rank, size = os.environ.get("HOROVOD_RANK"), os.environ.get("HOROVOD_SIZE")
    try:
        if rank is not None and size is not None:
            return int(rank), int(size)
        if rank is not None or size is not None:
            raise WorldError("only one of HOROVOD_RANK and HOROVOD_SIZE is set; set both or none")
        identity = identify(os.environ)
    except (WorldError, ValueError) as error:
        raise RuntimeError(str(error)) from None  # the type of error that Horovod raises
    return identity.rank, identity.size


def __getattr__(name: str) -> Any:
    from rueda.hvd.names import no_attribute

    raise no_attribute("horovod.runner.common.util.env", name)
