"""Horovod's steps: its optimizer averages in ``step``, so what is done with gradients before that must ask for them."""

from __future__ import annotations

import ast

from rueda.check.convert.conversion import Plan
from rueda.check.convert.flow import last_name, text_of
from rueda.check.convert.models import Optimizer

_BEFORE_STEP = ("clip_grad_norm_", "clip_grad_value_", "unscale_")


def wrap_optimizers(plan: Plan) -> None:
    """Wrap every optimizer, after it was made."""
    backwards = [each for each in plan.losses.backwards if each.loss]
    if len(plan.models.optimizers) > 1 and len(backwards) > 1:
        plan.todo(
            plan.models.optimizers[0].statement,
            "several optimizers take gradients of several backward passes: give each its backward_passes_per_step",
        )
    passes = _passes(plan)
    done: set[str] = set()
    for optimizer in plan.models.optimizers:
        if not optimizer.name or not optimizer.models or "self" in optimizer.models:
            plan.todo(optimizer.statement, "wrap this optimizer in hvd.DistributedOptimizer")
            continue
        _wrap(plan, optimizer, passes, done)
    if not plan.models.optimizers:
        plan.todo(plan.models.found[0].place, "average the gradients with hvd.allreduce before they are used")
    _synchronize(plan)


def _wrap(plan: Plan, optimizer: Optimizer, passes: str, done: set[str]) -> None:
    lines = [plan.style.optimizer[0]]
    lines += [
        f"hvd.broadcast_parameters({each}.state_dict(), root_rank=0)" for each in optimizer.models if each not in done
    ]
    done |= set(optimizer.models)
    options = f", backward_passes_per_step={passes}" if passes else ""
    if len(optimizer.models) == 1:
        options = f", named_parameters={optimizer.models[0]}.named_parameters(){options}"
    lines.append(plan.style.optimizer[1].format("", optimizer.name, options))
    if "LBFGS" in text_of(optimizer.call.func):
        plan.todo(optimizer.statement, "LBFGS calls its closure several times in a step: average the gradients in it")
    plan.edits.after(optimizer.statement, *lines)


def _passes(plan: Plan) -> str:
    """Return the number of backward passes for a step, as the script writes it."""
    found = plan.losses.accumulation()
    if found is None:
        return ""
    for node in ast.walk(found[0].test):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            text = text_of(node.right)
            if isinstance(node.right, ast.Constant):
                return text
            values = [value for _, value in plan.flow.assignments(text)]
            if len(values) == 1 and isinstance(values[0], ast.Constant):
                return text_of(values[0])
            if text.startswith("args."):
                return text
    optimizer = plan.models.optimizers[0].statement if plan.models.optimizers else plan.models.found[0].place
    plan.todo(optimizer, "give DistributedOptimizer the number of backward passes of a step: backward_passes_per_step")
    return ""


def _synchronize(plan: Plan) -> None:
    steps = [call for call in plan.script.calls if last_name(call.func) == "step" and _optimizer_of(plan, call)]
    early = [call for call in plan.script.calls if last_name(call.func) in _BEFORE_STEP]
    scaled = [call for call in steps if _optimizer_of(plan, call) != text_of(call.func.value)]  # type: ignore[attr-defined]
    first: dict[tuple[ast.AST, str], ast.stmt] = {}
    for call in sorted([*early, *scaled], key=lambda each: each.lineno):
        function = plan.script.function(call)
        near = {_optimizer_of(plan, each) for each in steps if plan.script.function(each) is function}
        name = _optimizer_of(plan, call) or (next(iter(near)) if len(near) == 1 else "")
        if not name:
            plan.todo(call, "call synchronize() of the optimizer before its gradients are changed")
            continue
        first.setdefault((function, name), plan.script.statement(call))
    for (_, name), statement in first.items():
        plan.edits.before(
            statement, "# The gradients are averaged before they are clipped or unscaled, not in the step."
        )
        plan.edits.before(statement, f"{name}.synchronize()")
    for call in steps:
        name, statement = _optimizer_of(plan, call), plan.script.statement(call)
        if (plan.script.function(call), name) in first:
            plan.edits.guard([statement], f"with {name}.skip_synchronize():  # They are averaged already.")


def _optimizer_of(plan: Plan, call: ast.Call) -> str:
    """Return the optimizer of ``optimizer.step()``, ``scaler.step(optimizer)`` or ``scaler.unscale_(optimizer)``."""
    names = {each.name.rpartition(".")[2] for each in plan.models.optimizers}
    given = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    for node in (*given, *call.args[:1]):
        if text_of(node).rpartition(".")[2] in names:
            return text_of(node)
    return ""
