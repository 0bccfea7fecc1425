"""Accepts the former names of commands for one more version, and prints a line that names the new command."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

_FORMER_STUDIES = {
    "--throughput": "throughput",
    "--steps-to-target": "steps-to-target",
    "--gd": "gradient-descent",
    "--parallelism": "parallelism",
}
"""options of ``rueda study`` that have become commands of their own"""


class CommandsWithFormerNames(TyperGroup):
    """Runs ``rueda study TASK --throughput`` as ``rueda throughput TASK``, and likewise the others."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the words name, also by its former name."""
        return super().resolve_command(ctx, args if ctx.resilient_parsing else _renamed(args))


def _renamed(words: list[str]) -> list[str]:
    """Replace a former name in the words of a command line by the new one."""
    from rueda.errors import RunError

    chosen = [word for word in words if word in _FORMER_STUDIES] if words[0] == "study" else []
    if not chosen:
        return words
    if len(set(chosen)) > 1:
        raise RunError(f"{' and '.join(chosen)} are commands of their own; run one at a time")
    command = _FORMER_STUDIES[chosen[0]]
    rest = [word for word in words[1:] if word not in chosen]
    if chosen[0] == "--gd" and "--help" not in rest:
        if "linear" not in rest:
            raise RunError("--gd studies the linear model and no other task; run: rueda gradient-descent")
        rest.remove("linear")
    typer.echo(f"rueda study {chosen[0]} will be removed in the next version; run: rueda {command}", err=True)
    return [command, *rest]
