"""The workers of a training: how they are identified and connected, and their collectives.

The names are imported when they are first used, so that the launcher (:mod:`rueda.world.launch`) starts without
importing torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rueda.lazy import lazily

if TYPE_CHECKING:
    from rueda.world.gathering import gather
    from rueda.world.identity import Identity, identify
    from rueda.world.life import current, finish, init, open_world
    from rueda.world.world import World

__all__ = ["Identity", "World", "current", "finish", "gather", "identify", "init", "open_world"]

__getattr__ = lazily(
    __name__,
    {
        "Identity": "identity",
        "World": "world",
        "current": "life",
        "finish": "life",
        "gather": "gathering",
        "identify": "identity",
        "init": "life",
        "open_world": "life",
    },
)
