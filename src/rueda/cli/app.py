"""The ``rueda`` command and its sub-commands."""

from __future__ import annotations

from typing import Annotated

import typer

from rueda.cli import (
    archive,
    assess,
    check,
    convert,
    demo,
    examine,
    forecast,
    gradient_descent,
    horovodrun,
    lab,
    measure,
    parallelism,
    plan,
    report,
    run,
    scale,
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
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Takes training from one worker to many and keeps the accuracy."""
    if show:
        from rueda import __version__

        typer.echo(__version__)
        raise typer.Exit


app.command("run", context_settings=run.CONTEXT)(run.run)
app.command("check", context_settings=check.CONTEXT, epilog=check.EPILOG)(check.check)
app.command("scale", context_settings=scale.CONTEXT, epilog=scale.EPILOG)(scale.scale)
app.command("assess", epilog=assess.EPILOG)(assess.assess)
app.command("convert", epilog=convert.EPILOG)(convert.convert)
app.command("horovodrun", context_settings=horovodrun.CONTEXT, epilog=horovodrun.EPILOG)(horovodrun.horovodrun)
for module in (train, study, throughput, steps_to_target, gradient_descent, parallelism, measure, plan, forecast,
               examine, report, archive, lab):  # fmt: skip
    function = module.__name__.rpartition(".")[2]
    app.command(function.replace("_", "-"), epilog=module.EPILOG)(getattr(module, function))
app.command("demo")(demo.demo)
app.add_typer(recipe_app, name="recipe")
app.add_typer(data_app, name="data")
