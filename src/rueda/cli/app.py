"""The ``rueda`` command and its sub-commands."""

from __future__ import annotations

from typing import Annotated

import typer

from rueda.cli import (
    archive,
    demo,
    examine,
    forecast,
    gradient_descent,
    horovodrun,
    measure,
    plan,
    report,
    run,
    steps_to_target,
    study,
    throughput,
    train,
)
from rueda.cli.data import data_app
from rueda.cli.former_names import CommandsWithFormerNames
from rueda.cli.recipe import recipe_app

app = typer.Typer(
    name="rueda",
    cls=CommandsWithFormerNames,
    help="Takes training from one worker to many and keeps the accuracy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """Takes training from one worker to many and keeps the accuracy."""
    if show:
        from rueda import __version__

        typer.echo(__version__)
        raise typer.Exit


app.command("run", context_settings=run.CONTEXT)(run.run)
app.command("horovodrun", context_settings=horovodrun.CONTEXT, epilog=horovodrun.EPILOG)(horovodrun.horovodrun)
app.command("train", epilog=train.EPILOG)(train.train)
app.command("study", epilog=study.EPILOG)(study.study)
app.command("throughput", epilog=throughput.EPILOG)(throughput.throughput)
app.command("steps-to-target", epilog=steps_to_target.EPILOG)(steps_to_target.steps_to_target)
app.command("gradient-descent", epilog=gradient_descent.EPILOG)(gradient_descent.gradient_descent)
app.command("measure", epilog=measure.EPILOG)(measure.measure)
app.command("plan", epilog=plan.EPILOG)(plan.plan)
app.command("forecast", epilog=forecast.EPILOG)(forecast.forecast)
app.command("examine", epilog=examine.EPILOG)(examine.examine)
app.command("report", epilog=report.EPILOG)(report.report)
app.command("archive", epilog=archive.EPILOG)(archive.archive)
app.command("demo")(demo.demo)
app.add_typer(recipe_app, name="recipe")
app.add_typer(data_app, name="data")
