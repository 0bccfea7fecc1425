"""``rueda recipe``: the named recipes and the fields of a recipe."""

from __future__ import annotations

from typing import Annotated

import typer

recipe_app = typer.Typer(help="Named recipes, and what a recipe may say.", no_args_is_help=True, rich_markup_mode=None)


@recipe_app.command("list")
def list_recipes() -> None:
    """List the named recipes."""
    from rueda.records.recipe.named import NAMED

    width = max(map(len, NAMED))
    for name, named in NAMED.items():
        typer.echo(f"{name:<{width}}  {named.summary}")


@recipe_app.command("show")
def show_recipe(
    name: Annotated[str, typer.Argument(help="The name of a recipe; see `rueda recipe list`.")],
    task: Annotated[str, typer.Option(help="The task whose own recipe it starts from.")] = "glyphs-cnn",
    workers: Annotated[int, typer.Option("--workers", "-np", help="For how many workers.")] = 8,
) -> None:
    """Print a named recipe as TOML, for a task and a number of workers."""
    from rueda.records.recipe.named import named_recipe
    from rueda.tasks import load_task

    typer.echo(named_recipe(name, load_task(task).recipe, workers).to_toml(), nl=False)


@recipe_app.command("fields")
def list_fields() -> None:
    """List the fields of a recipe with their defaults and meaning."""
    from rueda.records.recipe.recipe import describe_fields

    for name, default, meaning in describe_fields():
        typer.echo(f"{name:<20} {default:<10} {meaning}")
