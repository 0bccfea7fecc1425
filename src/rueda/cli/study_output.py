"""What the commands that compare trainings print: a table and the paths of the result and its page, or the file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import typer


def default_folder(task: str) -> Path:
    """Return ``runs/study-TASK``, where the studies of a task are written unless a folder is given."""
    from rueda.tasks.naming import folder_name

    return Path("runs", f"study-{folder_name(Path(task).stem)}")


def print_result(
    file: Path, as_json: bool, *, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], summary: str
) -> None:
    """Print a table and a line that sums it up, or the result file; then write the page."""
    if as_json:
        typer.echo(json.dumps(json.loads(file.read_text(encoding="utf-8"))))
    else:
        from rueda.terminal.table import make_table, print_table

        print_table(make_table(title, headings, rows))
        typer.echo(f"{summary}\nstudy: {file}")
    write_page(file.parent, as_json)


def write_page(folder: Path, as_json: bool) -> None:
    """Write ``report.html`` into a study's folder, and print its path unless the output is JSON."""
    from rueda.report import write_report

    page = write_report([folder], folder / "report.html")
    if not as_json:
        typer.echo(f"page: {page}")
