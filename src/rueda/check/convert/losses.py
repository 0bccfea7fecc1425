"""Backward passes: whether a loss is a mean or a sum over its batch, and where its value is used."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from rueda.check.convert.flow import Flow, last_name, names_in, text_of
from rueda.check.convert.loaders import targets_of
from rueda.check.convert.numbers import COUNT, MEAN, is_size, kind_of
from rueda.check.convert.script import Function, Scope

_SIZES = re.compile(r"\blen\(|\.size\(0\)|\.shape\[0\]|\.numel\(\)|\bbatch_size\b|\bbs\b|\.size\(-?\d\)")
_SIZE = re.compile(r"len\(\w+\)|\w+\.size\(0\)|\w+\.shape\[0\]")
_UNEVEN = ("weight", "ignore_index")  # of a loss whose mean is not one over examples
SUM, UNEVEN, UNSURE = "sum", "uneven", "unsure"  # and MEAN


@dataclass(frozen=True)
class Backward:
    """A backward pass."""

    root: ast.expr
    """what it starts from"""
    loss: str
    """the name of the loss in it; nothing if it has none"""
    kind: str
    """``mean`` or ``sum`` over the batch; ``uneven``: a mean over something else; ``unsure``"""
    statement: ast.stmt


class Losses:
    """The backward passes of a script, and what is computed from batches besides."""

    def __init__(self, flow: Flow) -> None:
        self._flow, self._script = flow, flow.script

    @cached_property
    def backwards(self) -> list[Backward]:
        """All calls ``loss.backward()``."""
        found = []
        for call in self._script.calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
                root = call.func.value
                inner = root
                while isinstance(inner, ast.Call) and last_name(inner.func) == "scale" and inner.args:
                    inner = inner.args[0]  # of a GradScaler
                scope = self._script.function(call)
                name = text_of(inner) if isinstance(inner, ast.Name | ast.Attribute) else ""
                found.append(Backward(root, name, self._kind(inner, scope, 0), self._script.statement(call)))
        return found

    @cached_property
    def parts(self) -> list[Backward]:
        """The terms of losses that have names: ``recon`` and ``kl`` of ``loss = recon + 0.1 * kl``."""
        found = {}
        leads = {each.loss for each in self.backwards}
        for backward in self.backwards:
            for value in self.in_loop(backward.loss, backward.statement) if backward.loss else []:
                for term in _terms(value):
                    if term.id not in leads and self.in_loop(term.id, backward.statement):
                        scope = self._script.function(backward.statement)
                        kind = self._kind(term, scope, 0)
                        found[term.id, backward.statement] = Backward(term, term.id, kind, backward.statement)
        return list(found.values())

    # A mean or a sum.

    def _kind(self, node: ast.expr, scope: Scope, depth: int) -> str:
        if depth > 12:
            return MEAN
        if isinstance(node, ast.BinOp):
            return self._kind_of_operation(node, scope, depth)
        if isinstance(node, ast.UnaryOp):
            return self._kind(node.operand, scope, depth + 1)
        if isinstance(node, ast.Call):
            return self._kind_of_call(node, scope, depth)
        if isinstance(node, ast.Name):
            home = self._flow.scope_of(node.id, scope)
            before = [
                (at, value) for at, value in self._flow.assignments(node.id, home)
                if self._is_same_part(at, node) and node.id not in set(names_in(value))
            ]  # fmt: skip
            values = [value for _, value in before]
            if before and self._always_runs(before[-1][0], node):
                values = values[-1:]  # those before it are forgotten
            kinds = {self._kind(value, home, depth + 1) for value in values if not isinstance(value, ast.Constant)}
            return _join(kinds)
        return MEAN

    def _always_runs(self, statement: ast.AST, node: ast.AST) -> bool:
        """Return whether a statement has run whenever a later node of its function runs."""
        if not isinstance(statement, ast.stmt) or self._script.function(statement) is not self._script.function(node):
            return False
        block = self._script.block(statement)
        return any(each in block for each in self._script.around(node))

    def _is_same_part(self, statement: ast.AST, node: ast.AST) -> bool:
        """Return whether an assignment comes before a node in the text, or is in another function."""
        return self._script.function(statement) is not self._script.function(node) or (
            statement.lineno <= getattr(node, "lineno", 0)  # type: ignore[attr-defined]
        )

    def _kind_of_operation(self, node: ast.BinOp, scope: Scope, depth: int) -> str:
        if isinstance(node.op, ast.Add | ast.Sub):
            kinds = {self._kind(each, scope, depth + 1) for each in (node.left, node.right) if _is_tensor(each)}
            return _join(kinds)
        if isinstance(node.op, ast.Div):
            kind = self._kind(node.left, scope, depth + 1)
            if kind == SUM and not isinstance(node.right, ast.Constant):
                return MEAN if _SIZES.search(text_of(node.right)) else UNSURE
            return kind
        kinds = {self._kind(each, scope, depth + 1) for each in (node.left, node.right) if _is_tensor(each)}
        return SUM if SUM in kinds else _join(kinds)

    def _kind_of_call(self, call: ast.Call, scope: Scope, depth: int) -> str:
        kind = _kind_of_options(call)
        if kind:
            return kind
        function = self._flow.called(call)
        if function is not None and function.name != "__init__":
            returned = [each.value for each in ast.walk(function) if isinstance(each, ast.Return) and each.value]
            parts = [each.elts[0] if isinstance(each, ast.Tuple) else each for each in returned]
            return _join({self._kind(each, function, depth + 1) for each in parts})
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("sum", "mean"):
            if self._script.path(call.func).startswith("torch."):
                return SUM if call.func.attr == "sum" and len(call.args) == 1 and not call.keywords else MEAN
            if call.func.attr == "mean":
                return MEAN
            return SUM if not call.args and not call.keywords else self._kind(call.func.value, scope, depth + 1)
        made = [value for _, value in self._flow.assignments(text_of(call.func)) if isinstance(value, ast.Call)]
        made += [call.func] if isinstance(call.func, ast.Call) else []  # nn.CrossEntropyLoss()(output, target)
        return _join({kind for kind in map(_kind_of_options, made) if kind})

    # Where values of a batch are used.

    def uses(self, backward: Backward) -> Iterator[tuple[ast.stmt, list[ast.expr]]]:
        """Iterate over the statements of its function that use a loss otherwise, with its names there."""
        if not backward.loss:
            return
        scope = self._script.function(backward.statement)
        roots = {each for other in self.backwards for each in ast.walk(other.root)}
        leads = {other.loss for other in self.backwards}
        found: dict[ast.stmt, list[ast.expr]] = {}
        for node in self._script.nodes:
            if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
                continue
            if text_of(node) != backward.loss or self._script.function(node) is not scope or node in roots:
                continue
            statement = self._script.statement(node)
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            if any(text_of(target) in leads for target in targets) or isinstance(statement, ast.Delete):
                continue  # another loss is made of it
            if backward in self.parts and node.lineno < backward.statement.lineno and not self._is_number(node):
                continue  # the loss is made of it
            if self._flow.is_in_training_loop(node) or node.lineno > backward.statement.lineno:
                found.setdefault(statement, []).append(node)
        yield from found.items()

    def _is_number(self, node: ast.AST) -> bool:
        """Return whether only the number of a tensor is used, without its gradient."""
        return last_name(self._script.parents[node]) in ("item", "detach")

    def counts(self) -> Iterator[ast.AugAssign]:
        """Iterate over statements of training loops that add up a count of a batch, or its loss times its size."""
        yield from (node for node, kind in self._totals if kind == COUNT)

    def averages(self) -> Iterator[ast.AugAssign]:
        """Iterate over statements of training loops that add up another mean over a batch than its loss."""
        yield from (node for node, kind in self._totals if kind == MEAN)

    @cached_property
    def _totals(self) -> list[tuple[ast.AugAssign, str]]:
        losses = {each.loss for each in (*self.backwards, *self.parts)}
        found = []
        for node in self._script.nodes:
            if not isinstance(node, ast.AugAssign) or not isinstance(node.op, ast.Add) or not self.is_of_batch(node):
                continue
            if text_of(node.target) in losses:
                continue
            values = self._assigned(node)
            all_values = [node.value, *(each for name in set(names_in(node.value)) - losses for each in values(name))]
            if any(losses & set(names_in(value)) for value in all_values):
                is_times_size = any(_is_times_size(value, losses, values) for value in all_values)
                kind = COUNT if is_times_size else ""  # otherwise its mean over the workers is added
            else:
                kind = kind_of(node.value, values)
            found.append((node, kind))
        return found

    def _assigned(self, node: ast.AST) -> Callable[[str], list[ast.expr]]:
        return lambda name: self.in_loop(name, node)

    def means(self) -> Iterator[ast.Assign]:
        """Iterate over statements of training loops that keep another mean over a batch, as a number."""
        losses = {each.loss for each in self.backwards}
        for node in self._script.nodes:
            if isinstance(node, ast.Assign) and text_of(node.targets[0]) not in losses and self.is_of_batch(node):
                text = text_of(node.value)
                if text.endswith(".item()") and ".mean(" in text:
                    yield node

    def sizes(self, statement: ast.stmt) -> list[ast.Call]:
        """Return the calls ``len(batch)`` in a statement of a training loop."""
        loops = [each for each in self._script.around(statement) if each in self._flow.training_loops]
        if not loops or not self.is_of_batch(statement):
            return []
        given = targets_of(loops[0])
        calls = [each for each in ast.walk(statement) if isinstance(each, ast.Call) and last_name(each.func) == "len"]
        return [call for call in calls if len(call.args) == 1 and text_of(call.args[0]) in given]

    def meters(self) -> Iterator[tuple[ast.stmt, list[ast.expr], list[ast.expr]]]:
        """Iterate over ``meter.update(value, n)`` in training loops: the statement, sizes, other values."""
        losses = {each.loss for each in self.backwards}
        for node in self._script.nodes:
            if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
                continue
            call = node.value
            if last_name(call.func) != "update" or not self.is_of_batch(node):
                continue
            given = [*call.args, *(each.value for each in call.keywords)]
            sizes = [each for each in given if _SIZE.fullmatch(text_of(each))]
            values = [each for each in given if each not in sizes and not losses & set(names_in(each))]
            yield node, sizes, values

    def is_accuracy(self, node: ast.expr, place: ast.AST) -> bool:
        """Return whether a value is an accuracy by its name, or by that of the function that computed it."""
        values = [node, *(value for name in names_in(node) for value in self.in_loop(name, place))]
        calls = [each for value in values for each in ast.walk(value) if isinstance(each, ast.Call)]
        return "acc" in text_of(node) or any("acc" in last_name(each.func) for each in calls)

    def is_size(self, node: ast.expr) -> bool:
        """Return whether an expression is the number of examples of something."""
        return _SIZE.fullmatch(text_of(node)) is not None

    def in_loop(self, name: str, node: ast.AST) -> list[ast.expr]:
        """Return what is assigned to a name in the training loop around a node."""
        loops = [each for each in self._script.around(node) if each in self._flow.training_loops]
        if not loops:
            return []
        inside = set(ast.walk(loops[0]))
        scope = self._script.function(node)
        return [value for at, value in self._flow.assignments(name, scope) if at in inside]

    def is_of_batch(self, node: ast.AST) -> bool:
        """Return whether a statement stands in the innermost loop that trains, or a function that such a loop calls."""
        loops = [each for each in self._script.around(node) if isinstance(each, ast.For | ast.AsyncFor | ast.While)]
        if loops:
            direct = any(isinstance(each, ast.Call) and self._runs(each) for each in ast.walk(loops[0]))
            inner = [each for each in ast.walk(loops[0]) if isinstance(each, ast.For | ast.While | ast.AsyncFor)]
            return direct and not any(self._flow.trains(each) for each in inner if each is not loops[0])
        function = self._script.function(node)
        return function is not self._script.tree and any(
            self._script.function(each.statement) is function for each in self.backwards
        )

    def _runs(self, call: ast.Call) -> bool:
        return last_name(call.func) == "backward" or self._flow.called(call) in self._flow.training_functions

    # Accumulation of gradients.

    def accumulation(self) -> tuple[ast.If, ast.stmt] | None:
        """Return the ``if`` under which an optimizer steps after several backward passes, and their loop."""
        for backward in self.backwards:
            for around in self._script.around(backward.statement):
                if isinstance(around, Function):
                    break
                if isinstance(around, ast.For | ast.AsyncFor):
                    for each in around.body:
                        if isinstance(each, ast.If) and not each.orelse and _steps(each) and not _runs_backward(each):
                            return each, around
                    break
        return None


def _is_times_size(value: ast.expr, losses: set[str], values: Callable[[str], list[ast.expr]]) -> bool:
    """Return whether a loss is multiplied by the number of examples of a batch, as this worker counts them.

    ``loss.item() * len(x)`` is; ``loss.item() * args.batch_size`` and ``loss.item() / len(loader)`` are not.
    """
    products = [each for each in ast.walk(value) if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mult)]
    pairs = [pair for each in products for pair in ((each.left, each.right), (each.right, each.left))]
    return any(losses & set(names_in(loss)) and is_size(factor, values) for loss, factor in pairs)


def _terms(node: ast.expr) -> list[ast.Name]:
    """Return the names that a sum adds up, with or without factors."""
    if isinstance(node, ast.Name):
        return [node]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        return [*_terms(node.left), *_terms(node.right)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Name):
        return [node.right]
    return []


def _is_tensor(node: ast.expr) -> bool:
    """Return whether an operand may be a loss: constants and plain names of settings are none."""
    return any(isinstance(each, ast.Call) for each in ast.walk(node)) or isinstance(node, ast.Name | ast.BinOp)


def _kind_of_options(call: ast.Call) -> str:
    options = {each.arg: each.value for each in call.keywords}
    reduction = options.get("reduction")
    if isinstance(reduction, ast.Constant) and reduction.value in ("sum", "mean"):
        kind = str(reduction.value)
        return UNEVEN if kind == MEAN and options.keys() & set(_UNEVEN) else kind
    if isinstance(options.get("size_average"), ast.Constant) and not options["size_average"].value:  # type: ignore[attr-defined]
        return SUM
    name = last_name(call.func).lower().replace("_", "")
    is_loss = name.startswith(("crossentropy", "nll"))  # whose mean is divided by the sum of the weights
    return UNEVEN if is_loss and options.keys() & set(_UNEVEN) else ""


def _join(kinds: set[str]) -> str:
    if len(kinds) == 1:
        return next(iter(kinds))
    if UNSURE in kinds or SUM in kinds:
        return UNSURE
    return UNEVEN if UNEVEN in kinds else MEAN


def _steps(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Call) and last_name(each.func) == "step" for each in ast.walk(node))


def _runs_backward(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Call) and last_name(each.func) == "backward" for each in ast.walk(node))
