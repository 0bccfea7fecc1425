"""The identity and device of this process, for code that must not import torch."""

from __future__ import annotations

import os
import sys

from rueda.world.identity import Identity, identify


def running_identity() -> Identity:
    """Return the identity in the open world, else in the script's own process group, else as the launcher set it."""
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
    """Return the device type of the open world (``cpu``, ``cuda``, ``mps``); None if none is open."""
    life = sys.modules.get("rueda.world.life")
    return str(life.current().device.type) if life is not None and life.is_open() else None
