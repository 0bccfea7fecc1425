"""Rank 0 alone prints, writes files and tells trackers; the others wait before they read what it wrote."""

from __future__ import annotations

import ast

from rueda.check.convert.conversion import Plan
from rueda.check.convert.flow import last_name

_WHY = "  # One worker writes."


def let_one_write(plan: Plan) -> None:
    """Guard all statements that write."""
    style, edits = plan.style, plan.edits
    for run in _runs(plan):
        edits.guard(run, f"if {style.is_main}:{_WHY}")
    for call in plan.writes.opened:
        plan.uses_files = True
        edits.before(plan.script.statement(call), "# One worker writes; what the others write goes nowhere.")
        edits.enclose(call.args[0], "", f" if {style.is_main} else os.devnull")
    for call in plan.writes.summary_writers:
        statement = plan.script.statement(call)
        if isinstance(statement, ast.Assign) and statement.value is call:
            edits.before(statement, "# One worker keeps the record; the others have no writer.")
            edits.enclose(call, "", f" if {style.is_main} else None")
        else:
            plan.todo(call, "let rank 0 alone make this writer")
    for call in plan.writes.bars:
        edits.before(plan.script.statement(call), "# One worker draws the bar.")
        _add_argument(plan, call, f"disable={style.rank} != 0")
    for call in plan.script.calls_of("wandb.init"):
        edits.before(plan.script.statement(call), "# One worker keeps the record of the run.")
        if any(each.arg == "mode" for each in call.keywords):
            plan.todo(call, 'give the other workers mode="disabled"')
        else:
            _add_argument(plan, call, f'mode=None if {style.is_main} else "disabled"')
    for statement in plan.writes.downloads:
        edits.before(
            statement,
            "# Rank 0 downloads the data; the others wait, and find them.",
            f"if {style.rank} > 0:",
            f"    {style.barrier}",
        )
        edits.after(statement, f"if {style.is_main}:", f"    {style.barrier}")
    for statement in plan.writes.reads:
        edits.before(statement, f"{style.barrier}  # Rank 0 may still be writing the file.")
    _pin(plan)


def _runs(plan: Plan) -> list[list[ast.stmt]]:
    """Return the statements that write, those that follow each other together."""
    found: list[list[ast.stmt]] = []
    for statement in plan.writes.statements:
        if _is_guarded(plan, statement) or (plan.head is not None and statement.lineno < plan.head.lineno):
            continue  # before the imports, nobody knows its rank
        block = plan.script.block(statement)
        place = block.index(statement)
        if found and place and block[place - 1] is found[-1][-1] and not _averages(plan, statement):
            found[-1].append(statement)
        else:
            found.append([statement])
    return found


def _averages(plan: Plan, statement: ast.stmt) -> bool:
    """Return whether a line that all workers must run stands before a statement."""
    losses = (*plan.losses.backwards, *plan.losses.parts)
    uses = {use for backward in losses for use, _ in plan.losses.uses(backward)}
    return statement in uses or statement in plan.writes.reads or bool(plan.losses.sizes(statement))


def _is_guarded(plan: Plan, statement: ast.stmt) -> bool:
    """Return whether a statement is in the code of a data set, which runs in loader processes as well."""
    holder = plan.script.class_of(statement)
    return holder is not None and any(last_name(base) in ("Dataset", "IterableDataset") for base in holder.bases)


def _add_argument(plan: Plan, call: ast.Call, text: str) -> None:
    given = [*call.args, *(each.value for each in call.keywords)]
    if not given:
        plan.todo(call, f"give it {text}")
        return
    last = max(given, key=lambda each: (each.end_lineno or 0, each.end_col_offset or 0))
    if isinstance(last, ast.GeneratorExp):
        plan.todo(call, f"give it {text}")
        return
    plan.edits.enclose(last, "", f", {text}")


def _pin(plan: Plan) -> None:
    """A device with a number is the same one for all workers."""
    for node in plan.script.nodes:
        if isinstance(node, ast.Constant) and node.value == "cuda:0" and plan.script.is_placed(node):
            plan.edits.before(plan.script.statement(node), "# This worker's own GPU, which was chosen at the start.")
            plan.edits.replace(node, plan.script.source(node).replace(":0", ""))
    for call in plan.script.calls:
        numbered = call.args and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, int)
        if (last_name(call.func) == "cuda" and numbered) or plan.script.path(call.func) == "torch.cuda.set_device":
            plan.todo(call, "let every worker use its own GPU, which was chosen at the start")
        elif last_name(call.func) == "DataParallel":
            plan.todo(call, "leave out DataParallel: every worker has one GPU")
