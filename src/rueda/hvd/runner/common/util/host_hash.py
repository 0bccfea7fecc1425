"""A name for this machine, as ``horovod.runner.common.util.host_hash``."""

from __future__ import annotations

import hashlib
import os
import socket


def host_hash(salt: str | None = None) -> str:
    """Return a text that is the same in all processes of this machine (or container) and differs between machines.

    >>> host_hash() == host_hash(), host_hash("job 7") == host_hash()
    (True, False)
    """
    name = socket.gethostname()
    parts = [name, os.environ.get("CONTAINER_ID", ""), salt or ""]
    return f"{name.split('.')[0]}-{hashlib.sha256('/'.join(parts).encode()).hexdigest()[:32]}"
