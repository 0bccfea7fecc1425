"""``rueda assess``: gives out the task of the course and grades it, as :mod:`rueda.assess` does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rueda.cli.stopping import resumable, stoppable

EPILOG = "Example: rueda assess train.py -np 4 --target-accuracy .75 --within 300"


def assess(
    script: Annotated[Path | None, typer.Argument(help="The script to grade, or a folder with train.py.")] = None,
    workers: Annotated[int, typer.Option("-np", "--workers", help="Number of workers.")] = 2,
    target_accuracy: Annotated[
        float | None, typer.Option(help="Accuracy to be reached; by default that of the data set.")
    ] = None,
    patience: Annotated[int, typer.Option(help="Consecutive epochs that must reach it.")] = 2,
    within: Annotated[float, typer.Option(help="Seconds of training, measured by the grader.")] = 300.0,
    data: Annotated[
        str, typer.Option(help="Data set: glyphs, which needs no network, fashion-mnist or cifar-10.")
    ] = "glyphs",
    name: Annotated[str, typer.Option(help="Who handed it in; by default from the name of the file or folder.")] = "",
    output: Annotated[
        Path | None,
        typer.Option(help="Write the result to this file, for rueda report; with --folder a folder (assessments)."),
    ] = None,
    key: Annotated[Path | None, typer.Option(help="The teacher's key, to sign or verify.")] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="Write a signed certificate to this file if it has passed; needs --key.")
    ] = None,
    new: Annotated[Path | None, typer.Option(help="Make this folder with the serial script and the task.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Grade every submission in this folder.")] = None,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Say which --within is fair on this machine.")] = False,
    verify: Annotated[Path | None, typer.Option(help="Say whether this certificate is genuine; needs --key.")] = None,
    new_key: Annotated[Path | None, typer.Option(help="Make a teacher's key in this file.")] = None,
) -> None:
    """Grade a script made parallel by a learner.

    It runs apart from the grader, which measures the time, evaluates the saved model on examples of its own, and checks
    that the workers train one model together. Status 0: passed, 1: failed.
    """
    from rueda.assess import command
    from rueda.assess.certificate import new_key as make_key
    from rueda.assess.settings import DATA_SETS, Settings, TaskData
    from rueda.errors import AssessError

    wanted = {
        "a script": script, "--new": new, "--folder": folder, "--calibrate": calibrate, "--verify": verify,
        "--new-key": new_key,
    }  # fmt: skip
    given = [what for what, value in wanted.items() if value]
    if len(given) != 1:
        got = " and ".join(given) or "none of them"
        raise AssessError("rueda assess", expected=f"one of {', '.join(wanted)}", got=got, do="see rueda assess --help")
    if key is None and (certificate is not None or verify is not None):
        what = "--certificate" if certificate is not None else "--verify"
        raise AssessError(what, expected="--key FILE as well", got="no key", do="make one with --new-key FILE")
    if certificate is not None and script is None:
        raise AssessError("--certificate", expected="one script", got=given[0], do="name the script")
    settings = Settings(
        data=TaskData(name=data), workers=workers, patience=patience, within=within,
        target_accuracy=target_accuracy if target_accuracy is not None else DATA_SETS[data],
    )  # fmt: skip
    with resumable() if folder is not None else stoppable("stopped; nothing was written"):
        if new is not None:
            command.make_task(new, settings)
        elif new_key is not None:
            make_key(new_key)
            typer.echo(f"{new_key}: keep it secret; certificates are signed and verified with it")
        elif verify is not None and key is not None:
            raise typer.Exit(command.verify(verify, key))
        elif calibrate:
            raise typer.Exit(command.calibrate_here(settings, output))
        elif folder is not None:
            raise typer.Exit(command.grade_folder(folder, settings, output or Path("assessments")))
        elif script is not None:
            raise typer.Exit(
                command.grade_script(script, settings, name=name, output=output, key=key, certificate=certificate)
            )
