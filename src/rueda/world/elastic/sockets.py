"""The connections of Gloo's process groups, so that a collective which waits for a lost peer can be made to fail.

A peer that is cut off or stopped keeps its connections open, and Gloo has no operation that ends a collective:
``ProcessGroupGloo.abort`` of torch 2.13 does nothing. If the connections themselves are shut down, however, every
collective that uses them fails at once, as if the peers had closed them. The connections are those sockets that appear
in this process while it opens a process group.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator

_opened: dict[int, int] = {}  # by descriptor: the inode, since the number may be used again


def _sockets() -> dict[int, int]:
    found: dict[int, int] = {}
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the folder itself is closed by now
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found[int(name)] = status.st_ino
    return found


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Record the sockets that are opened in the block."""
    before = _sockets()
    try:
        yield
    finally:
        _opened.update({number: inode for number, inode in _sockets().items() if before.get(number) != inode})


def shut_down() -> int:
    """Shut down the recorded connections and forget them; return how many there were.

    Sockets that listen are left alone: Gloo ends the process if it cannot accept on them.
    """
    recorded, num_closed = dict(_opened), 0
    _opened.clear()
    living = _sockets()
    for number, inode in recorded.items():
        if living.get(number) == inode:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
                if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    connection.shutdown(socket.SHUT_RDWR)
                    num_closed += 1
    return num_closed


def forget() -> None:
    """Forget the recorded sockets, since their process group is closed."""
    _opened.clear()
