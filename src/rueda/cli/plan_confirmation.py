"""``rueda plan --confirm``: rehearses a plan against one worker on a part of the epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rueda.errors import ProfileError
from rueda.plan.choice import with_cooldown
from rueda.plan.planning import base_recipe
from rueda.records.metric import TOLERANCE
from rueda.records.recipe.recipe import Recipe
from rueda.study.confirmation import DOUBTED, confirm
from rueda.tasks.naming import BUILTIN_TASKS
from rueda.terminal.metrics import write_number
from rueda.terminal.numbers import things
from rueda.terminal.table import print_prose

if TYPE_CHECKING:
    from rueda.records.plan import Plan
    from rueda.records.profile import Profile


def check_confirmable(profile: Profile, *, as_json: bool) -> None:
    """Refuse to confirm a plan of a training that only a script knows, or where nothing but the plan is printed."""
    if as_json:
        raise ProfileError("--json prints the plan and nothing else: leave --confirm out")
    if profile.task_file is None and profile.task not in BUILTIN_TASKS:
        raise ProfileError(
            "--confirm", expected="a profile of a built-in task or of a task file", got=profile.task,
            do="leave it out: only your script can train it",
        )  # fmt: skip


def rehearse_plan(plan: Plan, profile: Profile, epochs: int | None) -> None:
    """Rehearse a plan against one worker with the same cooldown, and say whether it holds so far."""
    base = base_recipe(profile)
    one = with_cooldown(base if epochs is None else base.change(epochs=epochs))
    task = plan.task if plan.task_file is None else plan.task_file.path
    tolerance = TOLERANCE if profile.tolerance is None else profile.tolerance
    found = confirm(task, one, Recipe.from_toml(plan.recipe), tolerance=tolerance, progress=True)
    on = "validation" if found.on_validation else "test"
    reached = "diverged" if found.planned is None else write_number(found.metric, found.planned)
    name = f"{found.metric.name}{', %' * found.metric.percent}"
    text = f"confirm: {on} {name}: one worker {write_number(found.metric, found.one_worker)} after "
    text += f"{things(found.epochs[0], 'epoch')}, planned {reached} after {things(found.epochs[1], 'epoch')}: "
    print_prose(text + ("the plan holds so far." if found.holds else "doubtful; use fewer workers or more epochs."))
    limit = f"{100 * DOUBTED * found.tolerance:g} {'points' if found.metric.percent else '%'}"
    print_prose(
        f"This is one seed at {_shares(found.shares)} of the training. It finds a plan that diverges or falls behind "
        f"by more than {limit}; it cannot tell whether a smaller difference remains at the end."
    )


def _shares(shares: tuple[float, float]) -> str:
    """Write the shares of the trainings of one worker and of the plan, as one if they are equal.

    >>> _shares((0.25, 0.25)), _shares((0.25, 2 / 7))
    ('25 %', '25 % (one worker) and 29 % (planned)')
    """
    one, planned = (f"{100 * share:.0f} %" for share in shares)
    return one if one == planned else f"{one} (one worker) and {planned} (planned)"
