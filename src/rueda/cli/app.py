"""The ``rueda`` command and its sub-commands."""

from __future__ import annotations

from typing import Annotated

import typer

from rueda.cli.data import data_app
from rueda.cli.demo import demo
from rueda.cli.examine import EPILOG as EXAMINE_EPILOG
from rueda.cli.examine import examine
from rueda.cli.forecast import EPILOG as FORECAST_EPILOG
from rueda.cli.forecast import forecast
from rueda.cli.horovodrun import CONTEXT as HOROVODRUN_CONTEXT
from rueda.cli.horovodrun import EPILOG as HOROVODRUN_EPILOG
from rueda.cli.horovodrun import horovodrun
from rueda.cli.measure import EPILOG as MEASURE_EPILOG
from rueda.cli.measure import measure
from rueda.cli.plan import EPILOG as PLAN_EPILOG
from rueda.cli.plan import plan
from rueda.cli.recipe import recipe_app
from rueda.cli.report import EPILOG as REPORT_EPILOG
from rueda.cli.report import report
from rueda.cli.run import CONTEXT, run
from rueda.cli.study import EPILOG as STUDY_EPILOG
from rueda.cli.study import study
from rueda.cli.train import EPILOG, train

app = typer.Typer(
    name="rueda",
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


app.command("run", context_settings=CONTEXT)(run)
app.command("horovodrun", context_settings=HOROVODRUN_CONTEXT, epilog=HOROVODRUN_EPILOG)(horovodrun)
app.command("train", epilog=EPILOG)(train)
app.command("study", epilog=STUDY_EPILOG)(study)
app.command("measure", epilog=MEASURE_EPILOG)(measure)
app.command("plan", epilog=PLAN_EPILOG)(plan)
app.command("forecast", epilog=FORECAST_EPILOG)(forecast)
app.command("examine", epilog=EXAMINE_EPILOG)(examine)
app.command("report", epilog=REPORT_EPILOG)(report)
app.command("demo")(demo)
app.add_typer(recipe_app, name="recipe")
app.add_typer(data_app, name="data")
