"""``rueda measure``: step time, memory, communication and gradient noise; the twin of :func:`rueda.measure.measure`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rueda.cli.numbers import whole_numbers
from rueda.cli.options import Settings, TaskName
from rueda.cli.stopping import stoppable

EPILOG = "Example: rueda measure glyphs-cnn --quick --output glyphs.json && rueda plan glyphs.json --workers 1,2,4,8"


def measure(
    task: TaskName,
    workers: Annotated[
        str | None,
        typer.Option(
            "--workers", "-np", help="How many workers to start: 2 or 2,4; 1 starts none. Under a launcher: its own."
        ),
    ] = None,
    batches: Annotated[
        str | None, typer.Option(help="Local batches, by commas; by default powers of two until throughput saturates.")
    ] = None,
    settings: Settings = None,
    quick: Annotated[bool, typer.Option("--quick", help="In under 30 s: fewer batches and repeats.")] = False,
    output: Annotated[Path, typer.Option(help="Where the profile is written.")] = Path("profile.json"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as JSON.")] = False,
) -> None:
    """Measure how a task trains here: step time, memory, communication, gradient noise scale."""
    from rueda.measure.whole_task import measure_task
    from rueda.world.running import running_identity

    file = output.absolute()  # a task file may leave this directory
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
    from rueda.terminal.table import print_table

    print_table(table_of(profile))
    for line in lines_of(profile):
        typer.echo(line)
    typer.echo(f"profile: {output}\nnext: rueda plan {output} --workers 1,2,4,8")
