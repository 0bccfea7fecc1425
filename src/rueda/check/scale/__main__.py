"""``python -m rueda.check.scale train.py``: one worker of ``rueda scale``, or its reference."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from rueda.check.scale.gpu import num_gpus, one_gpu
from rueda.check.scale.options import ScaleOptions
from rueda.errors import RuedaError
from rueda.world.identity import identify
from rueda.world.leaving import leave

_SECONDS_FOR_RANK_0 = 2.0  # most refusals are those of all workers: rank 0, whose lines are shown, is to be the first


def main() -> None:
    """Connect to the other workers, and run the script."""
    command = sys.argv[1:]
    if not command or not Path(command[0]).is_file():
        sys.exit("rueda: expected a script that exists; `rueda scale -np 2 train.py` starts this module")
    status = 0
    try:
        _run(command)
    except RuedaError as error:
        print(f"rueda: {error}", file=sys.__stderr__, flush=True)
        status = error.exit_status
        if os.environ.get("RANK", "0") != "0":
            time.sleep(_SECONDS_FOR_RANK_0)
        os._exit(status)  # the others may wait in a collective, which this worker will never enter
    leave(status)


def _run(command: list[str]) -> None:
    options = ScaleOptions.of(os.environ)
    if not options.is_reference:  # which shares the GPU of rank 0
        os.environ.update(one_gpu(os.environ, identify(os.environ).local_rank, num_gpus()))

    from rueda.check.scale import seeds
    from rueda.check.scale.notes import Notes
    from rueda.check.scale.scaling import Scaling
    from rueda.check.scale.verification import ComparedWithReference, Reference, Verification
    from rueda.world import World, finish, init
    from rueda.world.compiler_import import spare_compiler

    world = World() if options.is_reference else init()
    spare_compiler()  # of the reference, too
    os.environ[seeds.VARIABLE] = str(seeds.seed_alike(world))

    def verify(notes: Notes) -> Verification:
        if options.is_reference:
            return Reference(options)
        if world.is_main and world.size > 1 and options.verify:
            return ComparedWithReference(command, options, world, notes)
        return Verification()

    Scaling(world, options, folders=[Path(command[0]).parent], verify=verify).run(command)
    finish()


if __name__ == "__main__":
    main()
