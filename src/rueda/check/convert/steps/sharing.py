"""Each worker reads its share of every batch, and the loss is weighted with its size."""

from __future__ import annotations

import ast

from rueda.check.convert.conversion import Plan
from rueda.check.convert.losses import SUM, UNEVEN, UNSURE
from rueda.check.convert.styles import AGAIN_WHY, SHARE_WHY, SUM_WHY, WEIGHT_WHY

_UNEVEN = "a mean weighted by classes or tokens is not the mean of the workers' means: divide by their total weight"
_UNSURE = "say whether this loss is a mean or a sum over the batch; it is treated as a mean"


def share(plan: Plan) -> None:
    """Share out the loaders of training loops, and weight the losses."""
    sources = plan.loaders.shared
    for source in sources:
        statement = plan.script.statement(source.node)
        plan.edits.before(statement, *SHARE_WHY)
        if source.name:
            plan.edits.after(statement, f"{source.name} = SharedLoader({source.name})")
        else:
            plan.edits.enclose(source.node, "SharedLoader(", ")")
    if not sources:
        plan.todo(
            plan.flow.epoch_loops[0] if plan.flow.epoch_loops else plan.losses.backwards[0].statement,
            "let each worker read its own part of the data: they come from no DataLoader that was found",
        )
        return
    if len({plan.loaders.is_stream(each.makes) for each in sources if each.makes is not None}) > 1:
        plan.todo(sources[-1].node, "SharedLoader shares out data sets of one kind; share this one by hand")
    for node in plan.loaders.whole_uses():
        if plan.script.is_placed(node):
            statement = plan.script.statement(node)
            plan.edits.before(statement, "# All data, not this worker's share.")
            plan.edits.enclose(node, "", ".whole")
    _check_pairs(plan)
    _weight(plan)


def _check_pairs(plan: Plan) -> None:
    for loop in plan.flow.training_loops:
        if isinstance(loop, ast.For) and len({n for n in ast.walk(loop.iter) if plan.loaders.is_shared(n)}) > 1:
            plan.todo(
                loop, "SharedLoader.weight is that of the loader that was read last; the batches of both must match"
            )


def _weight(plan: Plan) -> None:
    is_said = False
    for backward in plan.losses.backwards:
        if backward.kind == SUM:
            plan.edits.before(backward.statement, *SUM_WHY)
            plan.edits.enclose(backward.root, "(", f" * {plan.style.size} * (SharedLoader.weight > 0))")
            continue
        if backward.kind == UNEVEN:
            plan.todo(backward.statement, _UNEVEN)
        elif backward.kind == UNSURE:
            plan.todo(backward.statement, _UNSURE)
        plan.edits.before(backward.statement, *([AGAIN_WHY] if is_said else WEIGHT_WHY))
        is_said = True
        plan.edits.enclose(backward.root, "(", " * SharedLoader.weight)")
