"""Options that several commands share, with one help text each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

TaskName = Annotated[str, typer.Argument(help="A built-in task, or a Python file that defines `task`.")]
Settings = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--set", metavar="NAME=VALUE", help="Set a field of the recipe; may be repeated."),
]
Epochs = Annotated[Optional[int], typer.Option(help="Passes over the training data.")]  # noqa: UP045
BatchSizes = Annotated[Optional[str], typer.Option(help="Batch sizes, by commas.")]  # noqa: UP045
StudyFolder = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(help="Where to write the result and its page; by default runs/study-TASK."),
]
PrintFile = Annotated[bool, typer.Option("--json", help="Print the result file.")]
