"""What is printed or decided on is of the entire batch, not of this worker's share."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from rueda.check.convert.conversion import Plan
from rueda.check.convert.flow import text_of
from rueda.check.convert.losses import SUM, Backward
from rueda.check.convert.script import Function
from rueda.check.convert.shares import OfShare

_LOSS_WHY = "  # The loss of the entire batch, not of this worker's share."
_MEAN_WHY = "# The mean over the entire batch."
_TODO = "{} is of this worker's share of the batch: average it over the workers"
_SUM_WHY = "# Added up over all workers, not over this one's share alone."


def average(plan: Plan) -> None:
    """Average losses and add up counts of training loops over the workers."""
    if not plan.loaders.shared:
        return
    counts = list(plan.losses.counts())
    of_share = OfShare(plan.flow, plan.losses)
    for count in counts:
        if not _follows(plan, count, counts):
            plan.edits.before(count, _SUM_WHY)
        plan.edits.enclose(count.value, "SharedLoader.sum(", ")")
    means: list[ast.Assign | ast.AugAssign] = [*plan.losses.means(), *plan.losses.averages()]
    for kept in means:
        if not _follows(plan, kept, means):
            plan.edits.before(kept, _MEAN_WHY)
        plan.edits.enclose(kept.value, "SharedLoader.mean(", ")")
    for statement, sizes, values in plan.losses.meters():
        for size in sizes:
            plan.edits.before(statement, _SUM_WHY)
            plan.edits.enclose(size, "SharedLoader.sum(", ")")
        for value in values:
            if sizes and plan.losses.is_accuracy(value, statement):  # the meter takes it for a mean over examples
                plan.edits.before(statement, _MEAN_WHY)
                plan.edits.enclose(value, "SharedLoader.mean(", ")")
            elif plan.losses.is_accuracy(value, statement) or of_share.in_expression(value, statement):
                plan.todo(statement, _TODO.format(text_of(value)))
    for backward in (*plan.losses.backwards, *plan.losses.parts):
        _average_loss(plan, backward, set(counts))
    for statement in plan.writes.statements:
        _count_all(plan, statement)
    _say_what_is_of_a_share(plan, of_share)


def _say_what_is_of_a_share(plan: Plan, of_share: OfShare) -> None:
    """What is shown, kept or decided by one worker's share gets a line that says so."""
    for statement in (*plan.writes.statements, *of_share.shown()):
        if plan.losses.is_of_batch(statement) and not of_share.is_picture(statement):
            for name in of_share.in_expression(statement, statement):
                plan.todo(statement, _TODO.format(name))
    for statement, holder in of_share.kept():
        do = "average" if isinstance(statement, ast.AugAssign) else "gather"
        plan.todo(statement, f"{holder} gets values of this worker's share alone: {do} those of all workers")
    for statement, sizes, names in of_share.decisions():
        for size in sizes:
            plan.edits.before(statement, _SUM_WHY)
            plan.edits.enclose(size, "SharedLoader.sum(", ")")
        for name in names:
            plan.todo(statement, f"{name} is of this worker's share: the workers must not decide differently")


def _follows(plan: Plan, statement: ast.stmt, others: Sequence[ast.stmt]) -> bool:
    """Return whether the statement before this one is another of these, above which the reason stands."""
    block = plan.script.block(statement)
    place = block.index(statement)
    return place > 0 and block[place - 1] in others


def _count_all(plan: Plan, statement: ast.stmt) -> None:
    """The number of examples that a line of progress shows is that of the entire batch."""
    for count in plan.losses.sizes(statement):
        if not plan.script.is_placed(count):
            plan.todo(statement, f"{text_of(count)} is the size of this worker's share: SharedLoader.sum adds them up")
            continue
        name = plan.script.free_name("num_examples")
        plan.edits.before(statement, f"{name} = SharedLoader.sum({text_of(count)})  # Of the entire batch.")
        plan.edits.replace(count, name)


def _average_loss(plan: Plan, backward: Backward, counts: set[ast.stmt]) -> None:
    function = "SharedLoader.sum" if backward.kind == SUM else "SharedLoader.mean"
    done: list[ast.stmt] = []
    for inner, nodes in plan.losses.uses(backward):
        statement = plan.writes.outermost(inner)
        if statement in counts:
            continue  # it is added up there
        if _is_after(plan, statement, backward.statement):
            if not any(_covers(plan, each, statement) for each in done):
                plan.edits.before(statement, f"{backward.loss} = {function}({backward.loss}){_LOSS_WHY}")
                done.append(statement)
        elif statement in plan.writes.statements or not all(plan.script.is_placed(node) for node in nodes):
            plan.todo(statement, f"move this after backward(), and print {function}({backward.loss})")
        else:
            plan.edits.before(statement, f"#{_LOSS_WHY.partition('#')[2]}")
            for node in nodes:
                plan.edits.enclose(node, f"{function}(", ")")


def _is_after(plan: Plan, statement: ast.stmt, backward: ast.stmt) -> bool:
    """Return whether a statement runs after the backward pass and before the next one."""
    if statement.lineno <= backward.lineno:
        return False
    if isinstance(statement, ast.While | ast.For | Function):
        return False
    holder = plan.script.parents[statement]
    return isinstance(holder, ast.stmt | ast.Module | ast.ExceptHandler)


def _covers(plan: Plan, earlier: ast.stmt, later: ast.stmt) -> bool:
    """Return whether a line before one statement has run whenever a later one runs."""
    block = plan.script.block(earlier)
    around = [later, *plan.script.around(later)]
    return any(each in around for each in block)
