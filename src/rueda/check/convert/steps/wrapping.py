"""Equal parameters on all workers and averaged gradients: the model is wrapped, or with Horovod its optimizer."""

from __future__ import annotations

import ast

from rueda.check.convert.conversion import Plan
from rueda.check.convert.flow import last_name, names_in, text_of
from rueda.check.convert.models import Model, Optimizer, last_part
from rueda.check.convert.steps import horovod

MODULE_NAMES = {
    "add_module", "apply", "bfloat16", "buffers", "children", "compile", "cpu", "cuda", "double", "eval", "extra_repr",
    "float", "forward", "get_buffer", "get_extra_state", "get_parameter", "get_submodule", "half", "ipu", "modules",
    "mtia", "named_buffers", "named_children", "named_modules", "named_parameters", "parameters",
    "register_backward_hook", "register_buffer", "register_forward_hook", "register_forward_pre_hook",
    "register_full_backward_hook", "register_full_backward_pre_hook", "register_load_state_dict_post_hook",
    "register_load_state_dict_pre_hook", "register_module", "register_parameter", "register_state_dict_post_hook",
    "register_state_dict_pre_hook", "requires_grad_", "set_extra_state", "set_submodule", "share_memory", "to",
    "to_empty", "train", "training", "type", "xpu", "zero_grad",
}  # fmt: skip
"""what every ``nn.Module`` has, and a wrapper does for its model; state dicts are apart, since their keys differ"""
_HARMLESS = ("init", "reset", "zero", "sample", "generate", "num", "count", "get", "set", "freeze", "configure")
_KEYS_WHY = "# Past the wrapper: the names of the parameters are the serial script's."
_UNWRAP_WHY = "# Past the wrapper, to the model itself."


def wrap(plan: Plan) -> None:
    """Wrap the models, or the optimizers."""
    if plan.style.optimizer:
        horovod.wrap_optimizers(plan)
        return
    places: set[tuple[ast.stmt, bool]] = set()
    for model in plan.models.found:
        lines = [line.format(model.name) for line in plan.style.wrap]
        if (model.place, model.is_after) in places:  # the reasons stand above it already
            lines = [line for line in lines if not line.startswith("#")]
        places.add((model.place, model.is_after))
        (plan.edits.after if model.is_after else plan.edits.before)(model.place, *lines)
    for optimizer in plan.models.parts:
        _part(plan, optimizer)
    _unwrap(plan)
    _called_in_parts(plan)
    _exchange_once(plan)


def _part(plan: Plan, optimizer: Optimizer) -> None:
    plan.todo(
        optimizer.statement,
        "this optimizer has a part of a model: its loop must call the entire model to average gradients",
    )


def _is_model(plan: Plan, node: ast.AST) -> Model | None:
    """Return the model that an expression names, as far as that can be seen."""
    if not isinstance(node, ast.Name | ast.Attribute) or (
        isinstance(node, ast.Name) and node.id in plan.script.imports
    ):
        return None
    name, scope = text_of(node), plan.script.function(node)
    exact = [model for model in plan.models.found if model.name == name and model.scope is scope]
    alike = [model for model in plan.models.found if last_part(model.name) == last_part(name)]
    return next(iter(exact + alike), None)


def _unwrapped(plan: Plan, node: ast.expr, model: Model) -> str:
    """Return the text of an unwrapped model; nothing if it is wrapped later."""
    source, holder = plan.script.source(node), plan.script.class_of(node)
    is_same = text_of(node) == model.name and plan.script.function(node) is model.scope
    if not is_same:
        is_kept = model.name.startswith("self.") and text_of(node) == model.name and holder is not None
        if is_kept and holder is plan.script.class_of(model.place) and plan.script.function(node) is not model.scope:
            return plan.style.unwrap.format(source)  # in another method
        return plan.style.unwrap_any.format(source)
    place = plan.script.span(model.place)[1 if model.is_after else 0]
    if any(plan.script.span(at)[0] >= place for at, _ in plan.flow.assignments(model.name, model.scope)):
        return plan.style.unwrap_any.format(source)  # another model may have taken the name
    return plan.style.unwrap.format(source) if plan.script.span(node)[0] >= place else ""


def _unwrap(plan: Plan) -> None:
    """A state dict has the keys of the serial script's, and methods of the model are reached past the wrapper."""
    modules = {name for name, each in plan.flow.classes.items() if any(last_name(b) == "Module" for b in each.bases)}
    for node in plan.script.nodes:
        why, inner = _UNWRAP_WHY, node
        if isinstance(node, ast.Attribute):
            if node.attr in MODULE_NAMES or node.attr.startswith("__"):
                continue
            inner = node.value
            why = _KEYS_WHY if "state_dict" in node.attr else _UNWRAP_WHY
        elif isinstance(node, ast.Subscript):  # a layer of nn.Sequential
            inner = node.value
        elif not _is_saved_or_copied(plan, node):
            continue
        holder = plan.script.class_of(node)
        model = _is_model(plan, inner)
        if model is None or not isinstance(inner, ast.expr) or (holder is not None and holder.name in modules):
            continue
        if isinstance(inner, ast.Attribute) and _is_model(plan, inner.value) is not None:
            continue  # a part of a model that has the name of another
        text = _unwrapped(plan, inner, model)
        if not text:
            continue
        statement = plan.script.statement(inner)
        if not plan.script.is_placed(inner):
            plan.todo(statement, f"unwrap {text_of(inner)} before this: {text}")
            continue
        plan.edits.before(statement, why)
        plan.edits.replace(inner, text)
        _check_call(plan, node)


def _is_saved_or_copied(plan: Plan, node: ast.AST) -> bool:
    """Return whether a node is a model that ``torch.save`` or ``copy.deepcopy`` gets as a whole."""
    if not isinstance(node, ast.Name | ast.Attribute) or isinstance(plan.script.parents.get(node), ast.Attribute):
        return False
    for around in plan.script.around(node):
        if isinstance(around, ast.Call):
            return plan.script.path(around.func) in ("torch.save", "copy.deepcopy")
        if not isinstance(around, ast.Dict | ast.Tuple):
            return False
    return False


def _check_call(plan: Plan, node: ast.AST) -> None:
    """A method of the model that computes in a training loop bypasses the wrapper, whose gradients are averaged."""
    call = plan.script.parents.get(node)
    if not isinstance(node, ast.Attribute) or not isinstance(call, ast.Call) or call.func is not node:
        return
    is_harmless = node.attr.startswith(_HARMLESS) or "state_dict" in node.attr
    withs = [each for each in plan.script.around(node) if isinstance(each, ast.With)]
    if is_harmless or any(
        "no_grad" in text_of(item) or "inference" in text_of(item) for w in withs for item in w.items
    ):
        return
    if any(each in plan.flow.training_loops for each in plan.script.around(node)):
        plan.todo(node, f"{node.attr} does not pass the wrapper, which averages gradients")


def _called_in_parts(plan: Plan) -> None:
    """A layer that is called by itself bypasses the wrapper, too."""
    names = {model.name for model in plan.models.found}
    for call in plan.script.calls:
        if not isinstance(call.func, ast.Subscript) or text_of(call.func.value) not in names:
            continue
        if plan.flow.is_in_training_loop(call):
            plan.todo(call, f"{text_of(call.func)} does not pass the wrapper, which averages gradients")


def _exchange_once(plan: Plan) -> None:
    """Several backward passes for one step: only the last of them need exchange gradients."""
    found = plan.losses.accumulation()
    if found is None or len(plan.models.found) != 1 or plan.models.found[0].name.startswith("self."):
        return
    condition, loop = found
    model = plan.models.found[0]
    assert isinstance(loop, ast.For | ast.AsyncFor)
    assigned = {name for each in loop.body for name in _stored(each)}
    same = plan.script.function(loop) is model.scope
    if assigned & set(names_in(condition.test)) or not same or not plan.script.is_placed(condition.test):
        return
    plan.edits.before(
        loop.body[0],
        "# Gradients are added up over several batches: only the backward pass before a step exchanges them.",
        f"{model.name}.require_backward_grad_sync = {plan.script.source(condition.test)}",
    )


def _stored(node: ast.AST) -> list[str]:
    return [each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
