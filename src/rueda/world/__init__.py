"""Who trains: the workers of one training, how they find each other, and what they do together.

The names are imported when they are first used, so that the launcher, which lives below this package, starts
without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rueda.lazy import lazily

if TYPE_CHECKING:
    from rueda.world.identity import Identity, identify
    from rueda.world.life import current, finish, init, open_world
    from rueda.world.world import World

__all__ = ["Identity", "World", "current", "finish", "identify", "init", "open_world"]

__getattr__ = lazily(
    __name__,
    {
        "Identity": "identity",
        "World": "world",
        "current": "life",
        "finish": "life",
        "identify": "identity",
        "init": "life",
        "open_world": "life",
    },
)
