"""``rueda measure``: measures step time, memory, communication and gradient noise scale.

The library's counterpart is :func:`rueda.measure.measure`.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from rueda.cli.numbers import whole_numbers
from rueda.cli.options import Settings, TaskName
from rueda.cli.stopping import stoppable

EPILOG = "Example: rueda measure glyphs-cnn --quick --output glyphs.json"


def measure(
    task: TaskName,
    workers: Annotated[
        str | None,
        typer.Option("--workers", "-np", help="Numbers of workers to start, such as 2 or 2,4; 1 starts none."),
    ] = None,
    batches: Annotated[
        str | None,
        typer.Option(help="Local batches, separated by commas; by default powers of two until throughput saturates."),
    ] = None,
    settings: Settings = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer batches and repeats: some 25 s instead of 2 minutes.")
    ] = False,
    output: Annotated[Path, typer.Option(help="The profile file to write.")] = Path("profile.json"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as JSON.")] = False,
) -> None:
    """Measure how a task trains on this machine.

    The profile holds step times, memory, communication and the gradient noise scale; `rueda plan` reads it.
    """
    from rueda.files.atomic import check_writable
    from rueda.measure.measure_task import measure as measure_task
    from rueda.world.running import running_identity

    file = output.absolute()  # a task file may change the directory
    check_writable(file)
    with stoppable("stopped; nothing was written"):
        profile = measure_task(
            task, workers=None if workers is None else whole_numbers("--workers", workers, "2,4"),
            batches=None if batches is None else whole_numbers("--batches", batches, "16,64"),
            settings=settings or [], quick=quick, progress=not as_json,
        )  # fmt: skip
    if running_identity().rank != 0:
        return
    profile.save(file)
    if as_json:
        typer.echo(profile.to_json())
        return
    from rueda.measure.table import lines_of, table_of
    from rueda.terminal.table import print_prose, print_table

    print_table(table_of(profile))
    for line in lines_of(profile):
        print_prose(line, indent="  ")
    counts = "1,2,4,8" if profile.communication else "1"  # without a measured link only one worker can be planned here
    typer.echo(f"profile: {output}\nnext: rueda plan {shlex.quote(str(output))} --workers {counts}")
