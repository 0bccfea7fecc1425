"""Errors of collectives which mean that a peer is gone: :func:`guard` turns them into :class:`PeerLost`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from rueda.errors import PeerError, PeerLost
from rueda.world.elastic import broken

__all__ = ["PeerLost", "guard", "means_lost_peer"]

_GLOO = re.compile(
    r"gloo/|connection (?:was )?(?:closed|reset|refused|aborted)|socket closed|broken pipe|by peer|^shared memory: "
    r"|process group (?:has been|was) (?:aborted|shut ?down)",
    re.IGNORECASE,
)


def means_lost_peer(error: BaseException) -> bool:
    """Return whether an error of a collective means that a peer is gone, or that the world is broken.

    Errors of the program itself do not; while the world is known to be broken, every RuntimeError and OSError does.

    >>> means_lost_peer(RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:40312"))
    True
    >>> means_lost_peer(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    False
    """
    if isinstance(error, (PeerLost, PeerError, dist.DistError)):
        return True
    if not isinstance(error, (RuntimeError, OSError)):
        return False
    return broken.error() is not None or _GLOO.search(str(error)) is not None


@contextmanager
def guard() -> Iterator[None]:
    """Turn the errors of collectives that mean a lost peer or a broken world into :class:`PeerLost`; others pass."""
    try:
        yield
    except PeerLost:
        raise
    except (RuntimeError, OSError, PeerError) as error:
        if not means_lost_peer(error):
            raise
        reason = broken.error()
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PeerLost(first if reason is None else str(reason)) from error
