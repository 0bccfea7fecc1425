"""``rueda recipe``: lists the named recipes and the fields of a recipe."""

from __future__ import annotations

from typing import Annotated

import typer

from rueda.cli import completion

recipe_app = typer.Typer(help="List the named recipes and recipe fields.", no_args_is_help=True, rich_markup_mode=None)


@recipe_app.command("list")
def list_recipes() -> None:
    """List the named recipes."""
    from rueda.records.recipe.named import NAMED
    from rueda.terminal.table import TextTable, print_table

    rows = [(name, named.summary) for name, named in NAMED.items()]
    print_table(TextTable("Named recipes for N workers", ("name", "technique"), rows, left=("name", "technique")))


@recipe_app.command("show")
def show_recipe(
    name: Annotated[str, typer.Argument(help="See `rueda recipe list`.", autocompletion=completion.recipes)],
    task: Annotated[str, typer.Option(help="Task whose recipe is changed.", autocompletion=completion.tasks)] = (
        "glyphs-cnn"
    ),
    workers: Annotated[int, typer.Option("--workers", "-np", help="Number of workers.")] = 8,
) -> None:
    """Print a named recipe as TOML."""
    from rueda.records.recipe.named import named_recipe
    from rueda.tasks import load_task

    typer.echo(named_recipe(name, load_task(task).recipe, workers).to_toml(), nl=False)


@recipe_app.command("fields")
def list_fields() -> None:
    """List the fields of a recipe."""
    from rueda.records.recipe.recipe import describe_fields
    from rueda.terminal.table import TextTable, print_table

    headings = ("field", "default", "meaning")
    print_table(TextTable("Fields of a recipe", headings, describe_fields(), left=headings))
