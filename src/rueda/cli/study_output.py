"""What the commands that compare trainings print: a table and the paths of the result and its page, or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rueda.records.json_record import JsonRecord
    from rueda.terminal.table import TextTable


def default_folder(task: str, prefix: str = "study") -> Path:
    """Return ``runs/PREFIX-TASK``, where the results for a task are written unless a folder is given."""
    from rueda.tasks.naming import folder_name

    return Path("runs", f"{prefix}-{folder_name(Path(task).stem)}")


def show_result(
    found: JsonRecord, folder: Path, as_json: bool, table: TextTable, *lines: str, kind: str = "study"
) -> None:
    """Print a result, then write its page, so that a failure of the page does not hide the result.

    Args:
        found: the result, which is saved in the folder already.
        folder: the folder of the result, into which the page is written. The page of a study shows all results in it.
        as_json: print the result as JSON instead of the table.
        table: the table of the result.
        lines: printed below the table.
        kind: "study" or "forecast".
    """
    from rueda.report import write_report
    from rueda.terminal.table import print_prose, print_table

    file = folder / found.FILE
    if as_json:
        typer.echo(found.to_json())
    else:
        print_table(table)
        for line in lines:
            print_prose(line)
        typer.echo(f"{kind}: {file}")
    page = write_report([folder if kind == "study" else file], folder / "report.html")
    if not as_json:
        typer.echo(f"page: {page}")
