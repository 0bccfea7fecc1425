"""A worker of the plain and rehearsed jobs: ``rueda.fit`` of a small task."""

from __future__ import annotations

import os
import sys
import warnings

import rueda
from faults import injected
from rueda.errors import RuedaError
from rueda.records import Recipe
from tinytask import tiny_task

BATCH, EXAMPLES = 12, 480
RECIPE = Recipe(
    batch=BATCH, epochs=4, rate=0.02, optimizer="adam", checkpoint_every=6, compare_every=4,
    model={"batch_norm": True, "dropout": 0.1},
)  # fmt: skip


def work(folder: str, resume: str, rehearse: str, epochs: str) -> None:
    """Train, or end with one line as the commands do.

    Args:
        folder: the run folder.
        resume: ``resume`` or ``new``.
        rehearse: how many workers are simulated in this process; 0 for none.
        epochs: passes over the data.
    """
    warnings.simplefilter("default")
    worker = injected.arm()
    assert worker is not None
    worker.note("began")
    recipe = RECIPE.change(epochs=int(epochs), **({"workers": int(rehearse)} if int(rehearse) else {}))
    try:
        rueda.fit(
            tiny_task(EXAMPLES), recipe, folder=folder, resume=resume == "resume", progress=False,
            rehearse=bool(int(rehearse)),
        )  # fmt: skip
        rueda.finish()
    except RuedaError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(error.exit_status)


if __name__ == "__main__":
    work(*sys.argv[1:])
