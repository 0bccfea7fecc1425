"""One seed for all workers, for scripts that set none.

The generators of torch, Python and NumPy start from the operating system's entropy in every process, so an unseeded
script would begin with other parameters and divide its data in another way on every worker. Rank 0 draws a seed for
all; a script that sets its own seeds overrides it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping

import numpy
import torch

from rueda.world import World

VARIABLE = "RUEDA_SCALE_SEED"


def seed_alike(world: World, environ: Mapping[str, str] = os.environ) -> int:
    """Seed the generators of torch, Python and NumPy with one number on all workers, and return it.

    Args:
        world: the workers.
        environ: the environment, which holds the number in the reference process.
    """
    own = int(environ.get(VARIABLE) or int.from_bytes(os.urandom(4), "little"))
    seed = world.broadcast_object(own)
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    return seed
