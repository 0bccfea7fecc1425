"""Writes the reference of all commands from their help: ``python -m rueda.cli.reference > docs/commands.md``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any


def reference() -> str:
    """Return the page as Markdown."""
    import typer

    from rueda.cli.app import app

    lines = [
        "# The commands", "", "Generated from the help texts by `python -m rueda.cli.reference`; a test compares it.",
        "", "`rueda --install-completion` installs completion for bash, zsh or fish.", "",
    ]  # fmt: skip
    for path, command in _commands(typer.main.get_command(app), "rueda"):
        usage = " ".join(command.collect_usage_pieces(_context(command, path)))
        lines += [f"## {path}", "", inspect.cleandoc(command.help or ""), "", f"    {path} {usage}", ""]
        rows = [record for item in command.params if (record := item.get_help_record(_context(command, path)))]
        lines += [f"- `{name}`: {text}" if text else f"- `{name}`" for name, text in rows]
        lines += [""] if rows else []
        lines += (
            [re.sub(r"(?m)^Example: (.+)$", r"Example: `\1`", inspect.cleandoc(command.epilog)), ""]
            if command.epilog
            else []
        )
    return "\n".join(lines).rstrip() + "\n"


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
    else:
        for name, child in sorted(children.items()):
            yield from _commands(child, f"{path} {name}")


def _context(command: Any, path: str) -> Any:
    return command.context_class(command, info_name=path)


if __name__ == "__main__":
    print(reference(), end="")
