"""Options that several commands share, with one help text each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TaskName = Annotated[str, typer.Argument(help="A built-in task, or a Python file that defines `task`.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set a field of the recipe; may be repeated.")
]
Epochs = Annotated[int | None, typer.Option(help="Passes over the training data.")]
BatchSizes = Annotated[str | None, typer.Option(help="Batch sizes, by commas.")]
StudyFolder = Annotated[
    Path | None, typer.Option(help="Where to write the result and its page; by default runs/study-TASK.")
]
PrintFile = Annotated[bool, typer.Option("--json", help="Print the result file.")]
PngFolder = Annotated[
    Path | None,
    typer.Option("--png", metavar="DIR", help="Also write each figure as PNG into this folder (needs Chromium)."),
]
