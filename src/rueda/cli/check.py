"""``rueda check``: audits a distributed script, as :mod:`rueda.check.audit` does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# Arguments that follow the script belong to it.
CONTEXT = {"allow_interspersed_args": False, "ignore_unknown_options": False}
EPILOG = "Example: rueda check -np 2 train.py --lr 0.1"


def check(
    command: Annotated[
        list[str], typer.Argument(metavar="SCRIPT", help="A Python script for several workers; then its arguments.")
    ],
    workers: Annotated[int, typer.Option("-np", "--workers", help="Number of workers.")] = 2,
    module: Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is a module, as in python -m.")] = False,
    updates: Annotated[
        int, typer.Option(min=0, help="End the script after so many optimizer steps; 0: at its own end.")
    ] = 1000,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write the result to this file, for rueda report.")] = None,
) -> None:
    """Find the mistakes of a distributed script.

    It runs unchanged on N workers; their data, gradients, parameters, files and collectives are compared.
    """
    from rueda.check.audit.command import check_script
    from rueda.hvd.runner.launch_plan import plan_job

    plan = plan_job(command, workers=workers, module=module)
    raise typer.Exit(check_script(plan, updates=updates, as_json=json, file=output))
