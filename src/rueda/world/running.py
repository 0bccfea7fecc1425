"""Which worker is this process, and what does it compute on? For code that must not load torch to ask."""

from __future__ import annotations

import os
import sys

from rueda.world.identity import Identity, identify


def running_identity() -> Identity:
    """Give the identity in the open world, else in the script's own process group, else as the launcher told it."""
    life = sys.modules.get("rueda.world.life")
    if life is not None and life.is_open():
        found: Identity = life.current().identity
        return found
    group = sys.modules.get("torch.distributed")
    if group is not None and group.is_available() and group.is_initialized():
        from rueda.world.life import adopted_identity

        return adopted_identity()
    return identify(os.environ)


def running_device() -> str | None:
    """Give the kind of device of the open world (``cpu``, ``cuda``, ``mps``); None if none is open."""
    life = sys.modules.get("rueda.world.life")
    return str(life.current().device.type) if life is not None and life.is_open() else None
