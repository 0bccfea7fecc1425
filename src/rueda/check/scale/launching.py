"""The launch of a scaled script: each worker runs :mod:`rueda.check.scale`, which runs the script."""

from __future__ import annotations

import sys
from dataclasses import replace

from rueda.check.scale.options import VARIABLE, ScaleOptions
from rueda.check.scale.parallel import library_of
from rueda.errors import ScaleError
from rueda.world.launch import LaunchPlan, OutputOptions, driver
from rueda.world.launch.failure import Failure, describe
from rueda.world.launch.program import resolve


def scale_script(plan: LaunchPlan, options: ScaleOptions) -> int:
    """Run a serial script on the workers of a plan, and return the exit status.

    A script that is parallel by itself (DistributedDataParallel, Lightning, Accelerate, Hugging Face's Trainer,
    Horovod, Rueda) is started as it is, and a line says so.

    Args:
        plan: the script, its arguments and the hosts.
        options: how it is scaled.
    """
    script = plan.program[0]
    if not script.endswith(".py"):
        raise ScaleError("rueda scale", expected="a Python script such as train.py", got=script, do="name it")
    resolve(plan.program)  # refuses a script that does not exist
    library = library_of(script)
    if library:
        _print(_left_alone(script, library, plan.workers))
        if library.startswith("Lightning"):
            plan = replace(plan, program=("rueda.check.scale.lightning_script", *plan.program), module=True)
        return driver.launch(plan, output=OutputOptions())
    # The order of a set of strings follows the hash seed, which is another one in each process unless it is set.
    environment = {"PYTHONHASHSEED": "0", **plan.environment, VARIABLE: options.as_text()}
    scaled = replace(plan, program=("rueda.check.scale", *plan.program), module=True, environment=environment)
    return driver.launch(scaled, output=OutputOptions(quiet_ranks=True), failed=_tell)


def _left_alone(script: str, library: str, workers: int | None) -> str:
    """Return the line for a script that has its own way to many workers, and what it does to the batch."""
    started = f"started as `rueda run -np {workers} {script}` would"
    if library.startswith("Lightning"):
        started = f"its Trainer or Fabric gets devices and strategy='ddp' for {workers} workers unless it names others"
    grows = ""
    if library.startswith(("Lightning", "Hugging Face")):
        grows = f"; each worker takes a batch of the script's size, so the global batch is {workers} times as large"
    return f"{script} is left alone: it uses {library}, which has its own way to many workers; {started}{grows}"


def _tell(failure: Failure, stderr: str) -> None:
    """Say which worker failed; a refusal of rank 0 has been shown already."""
    refusals = [line for line in stderr.splitlines() if line.startswith("rueda: ")]
    if failure.status != ScaleError.exit_status or not refusals:
        _print(describe(failure, stderr))
    elif failure.rank != 0:
        print(refusals[-1], file=sys.stderr, flush=True)


def _print(text: str) -> None:
    print(f"rueda: {text}", file=sys.stderr, flush=True)
