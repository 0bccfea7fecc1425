"""``rueda horovodrun``: horovodrun's own command line (:mod:`rueda.hvd.runner.launch`)."""

from __future__ import annotations

from typing import Annotated

import typer

# All arguments, `--help` included, are read by the parser of horovodrun's options.
CONTEXT = {"allow_interspersed_args": False, "ignore_unknown_options": True, "help_option_names": []}
EPILOG = (
    "`rueda horovodrun --help` lists the options; docs/horovod.md says which of them have an effect.\n\n"
    "Example: rueda horovodrun -np 4 -H server1:2,server2:2 python train.py"
)


def horovodrun(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="PROGRAM",
            help="-np N and further options, then the program and its arguments, as horovodrun takes them.",
            show_default=False,
            default_factory=list,
        ),
    ],
) -> None:
    """Run a script with horovodrun's own options.

    The options and the prefixes of the output are those of horovodrun; `rueda run` has fewer of them.
    """
    from rueda.hvd.runner.launch import horovodrun as run

    raise typer.Exit(run(words))
