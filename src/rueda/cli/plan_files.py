"""The files that ``rueda plan`` writes: the recipe, and ``plan.json`` beside it; other plans there are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from rueda.errors import ProfileError, RuedaError
from rueda.files.atomic import check_writable, write_atomically
from rueda.records.plan import Plan


def save_plan(plan: Plan, recipe: Path) -> tuple[Path, list[Path]]:
    """Write a plan and its recipe; return the file of the plan, and the new names of other plans that were there.

    Raises:
        ProfileError: a file cannot be written there.
    """
    check_writable(recipe)
    file = recipe.with_name("plan.json")
    check_writable(file)
    if any(path.exists() and not path.is_file() for path in (recipe, file)):
        raise ProfileError(f"--recipe-output {recipe}: expected a regular file, with plan.json beside it")
    if recipe.name == file.name:
        raise ProfileError(f"--recipe-output {recipe}: this is the plan itself; name the recipe otherwise")
    kept = [] if _is_same_plan(plan, recipe, file) else _rename_existing([recipe, file])
    write_atomically(recipe, plan.recipe.encode())
    plan.save(file)
    return file, kept


def _is_same_plan(plan: Plan, recipe: Path, file: Path) -> bool:
    """Return whether the files hold an equal plan, apart from the time and the command that made it."""
    try:
        former = replace(Plan.load(file), command=plan.command, environment=plan.environment)
        return former == Plan.from_json(plan.to_json()) and recipe.read_bytes() == plan.recipe.encode()
    except (OSError, RuedaError):
        return False


def _rename_existing(files: Sequence[Path]) -> list[Path]:
    """Rename the files that exist to ``NAME.1.SUFFIX``, or the first number that is free for all; return the new names.

    Somebody may have edited the recipe or may still be training with it, so a new plan does not overwrite it.
    """
    for number in count(1):
        renamed = {file: file.with_name(f"{file.stem}.{number}{file.suffix}") for file in files}
        if not any(new.exists() for new in renamed.values()):
            break
    try:
        return [file.rename(new) for file, new in renamed.items() if file.exists()]
    except OSError as error:
        raise ProfileError(f"cannot rename {error.filename}: {error.strerror}; use another --recipe-output") from None
