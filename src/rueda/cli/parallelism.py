"""``rueda parallelism``: the same training in each parallel form, as :func:`rueda.study.study_parallelism` does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rueda.cli.options import PrintFile, Settings, StudyFolder, TaskName
from rueda.cli.stopping import resumable
from rueda.cli.study_output import default_folder, show_result
from rueda.files.start_directory import located

EPILOG = "Example: rueda parallelism glyphs-cnn --workers 2"


def parallelism(
    task: TaskName,
    workers: Annotated[int, typer.Option("--workers", "-np", help="Number of workers of this machine.")] = 2,
    steps: Annotated[int, typer.Option(help="Steps after which the parameters are compared with one worker's.")] = 20,
    settings: Settings = None,
    folder: StudyFolder = None,
    as_json: PrintFile = False,
) -> None:
    """Compare parallel forms side by side.

    The same model trains on the same batches in each form: bytes, memory, idle time, throughput. What is measured
    stands beside what is predicted.
    """
    folder, start = folder or default_folder(task), Path.cwd()
    with resumable():
        from rueda.study.parallelism import study_parallelism

        found = study_parallelism(
            task, workers=workers, num_steps=steps, settings=settings or [], folder=folder, progress=not as_json
        )
    from rueda.report.parallelism import bytes_table, forms_table, sentences
    from rueda.terminal.table import print_table

    if not as_json:
        table = bytes_table(found)
        print_table(table.on_terminal(table.title))
    table = forms_table(found)
    refused = [f"{form}: {why}" for form, why in found.refused]
    show_result(found, located(folder, start), as_json, table.on_terminal(table.title), *sentences(found), *refused)
