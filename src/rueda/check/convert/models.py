"""Which models a script trains, with which optimizers, and where each can be wrapped."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cached_property

from rueda.check.convert.flow import Flow, text_of
from rueda.check.convert.script import Function, Scope

_OPTIMIZER = re.compile(r"torch\.optim\.(?!lr_scheduler)(?:\w+\.)?[A-Z]\w*$")
_PARAMETERS = ("parameters", "named_parameters")


@dataclass(frozen=True)
class Optimizer:
    """An optimizer that the script makes."""

    call: ast.Call
    statement: ast.stmt
    name: str
    """what it is assigned to; nothing if it is not"""
    models: tuple[str, ...]
    """the models whose parameters it has, as named in its function"""


@dataclass(frozen=True)
class Model:
    """A model that the script trains."""

    name: str
    scope: Scope
    place: ast.stmt
    """where it is wrapped"""
    is_after: bool
    """whether it is wrapped after that statement, not before it"""


class Models:
    """The models and optimizers of a script."""

    def __init__(self, flow: Flow) -> None:
        self._flow, self._script = flow, flow.script

    @cached_property
    def optimizers(self) -> list[Optimizer]:
        """All optimizers, in the order of the text."""
        found = []
        for call in self._script.calls:
            path = self._script.path(call.func)
            if not _OPTIMIZER.match(path):
                if not any(k.arg in ("lr", "weight_decay") for k in call.keywords) or not self._owners(call):
                    continue  # an optimizer of another library has a rate and parameters, too
                function = self._flow.called(call)
                if function is not None and function.name != "__init__":
                    continue
            statement = self._script.statement(call)
            name = ""
            if isinstance(statement, ast.Assign) and statement.value is call:
                name = text_of(statement.targets[0])
            found.append(Optimizer(call, statement, name, tuple(self._owners(call))))
        return found

    def _owners(self, node: ast.AST, depth: int = 0) -> list[str]:
        """Return the models whose parameters an expression mentions, also through variables."""
        found = []
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute) and inner.attr in _PARAMETERS:
                found.append(text_of(inner.value))
            elif isinstance(inner, ast.Name) and depth < 4:
                scope = self._flow.scope_of(inner.id, self._script.function(inner))
                for statement, value in self._flow.assignments(inner.id, scope):
                    if not any(each is node for each in ast.walk(statement)):
                        found += self._owners(value, depth + 1) if _may_hold(value) else []
        return list(dict.fromkeys(found))

    @cached_property
    def found(self) -> list[Model]:
        """The models, each once."""
        models: dict[tuple[Scope, str], Model] = {}
        for optimizer in self.optimizers:
            for name in optimizer.models:
                for model in self._models(name, optimizer.statement, 0):
                    models.setdefault((model.scope, model.name), model)
        if not models:  # updates by hand
            for loop in self._flow.training_loops:
                for node in ast.walk(loop):
                    if isinstance(node, ast.Attribute) and node.attr in _PARAMETERS and text_of(node.value) != "self":
                        for model in self._models(text_of(node.value), self._script.statement(loop), 0):
                            models.setdefault((model.scope, model.name), model)
        names = {model.name for model in models.values()}
        return [model for model in models.values() if not _is_part(model.name, names)]

    @cached_property
    def parts(self) -> list[Optimizer]:
        """Optimizers of a part of a model that another optimizer has as a whole."""
        whole = {model.name for model in self.found}
        return [each for each in self.optimizers if any(_is_part(name, whole) for name in each.models)]

    def _models(self, name: str, statement: ast.stmt, depth: int) -> list[Model]:
        scope = self._script.function(statement)
        if name == "self" and isinstance(scope, Function):  # a model that makes its own optimizer
            calls = [call for call in self._flow.calls_to(scope) if isinstance(call.func, ast.Attribute)]
            pairs = [(call.func.value, self._script.statement(call)) for call in calls]  # type: ignore[attr-defined]
            return [each for node, at in pairs if depth < 5 for each in self._models(text_of(node), at, depth + 1)]
        if name in self._flow.parameters(scope):
            kept = self._kept(name, scope)
            if kept:
                return [self._model(text_of(at.targets[0]), scope, statement, at) for at in kept]
            if scope not in self._flow.training_functions or not self._calls(name, scope):
                given = self._flow.arguments(scope, name)
                found = [
                    each for node in given if depth < 5
                    for each in self._models(text_of(node), self._script.statement(node), depth + 1)
                ]  # fmt: skip
                if found:
                    return found
        home = self._flow.scope_of(name, scope) if name.isidentifier() else scope
        if home is not scope:  # a name of the module, which a function would hide by an assignment
            made: list[ast.stmt] = [at for at, _ in self._flow.assignments(name, home) if isinstance(at, ast.stmt)]
            statements = [self._script.statement(each) for each in self._flow.calls_to(scope)]
            there = [each for each in statements if self._script.function(each) is home]
            if made:
                return [self._model(name, home, max([made[0], *there[:1]], key=lambda each: each.lineno))]
        return [self._model(name, scope, statement)]

    def _kept(self, name: str, scope: Scope) -> list[ast.Assign]:
        """Return assignments as ``self.model = model`` and ``self.model = model.to(device)``."""
        found = []
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign) and text_of(node.targets[0]).startswith("self."):
                value = node.value
                while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
                    value = value.func.value
                if text_of(value) == name:
                    found.append(node)
        return found

    def _calls(self, name: str, scope: Scope) -> bool:
        return any(isinstance(each, ast.Call) and text_of(each.func) == name for each in ast.walk(scope))

    def _model(self, name: str, scope: Scope, statement: ast.stmt, kept: ast.Assign | None = None) -> Model:
        for call in self._script.calls_of("torch.compile"):
            at = self._script.statement(call)
            if not isinstance(at, ast.Assign) or self._script.function(at) is not scope or not call.args:
                continue
            if text_of(call.args[0]) == name != text_of(at.targets[0]):
                return Model(name, scope, at, False)  # what is compiled is the wrapped model
        each: ast.AST = self._out_of_loops(name, scope, statement)
        while isinstance(each, ast.stmt) and each is not scope:
            block = self._script.block(each)
            later = [after for after in block[block.index(each) :] if not isinstance(after, Function | ast.ClassDef)]
            trains = [after for after in later if self._flow.trains(after)]
            if trains:
                return Model(name, scope, trains[0], False)
            each = self._script.parents[each]
            while not isinstance(each, ast.stmt | ast.Module):
                each = self._script.parents[each]
        if kept is not None and kept.lineno > statement.lineno:
            return Model(name, scope, kept, True)
        return Model(name, scope, statement, True)

    def _out_of_loops(self, name: str, scope: Scope, statement: ast.stmt) -> ast.stmt:
        """Return the outermost loop around a statement in which the model is not made anew, or the statement."""
        made = [at for at, _ in self._flow.assignments(name, scope)]
        found = statement
        for loop in self._script.around(statement):
            if loop is scope:
                break
            if isinstance(loop, ast.For | ast.AsyncFor | ast.While):
                inside = set(ast.walk(loop))
                if any(at in inside for at in made):
                    break
                found = loop
        return found


def _may_hold(value: ast.expr) -> bool:
    """Return whether a value may be a list of parameters: it is no model itself."""
    return isinstance(value, ast.List | ast.Tuple | ast.ListComp | ast.DictComp | ast.Dict | ast.Call | ast.BinOp) and (
        any(isinstance(each, ast.Attribute | ast.Name | ast.List | ast.Dict) for each in ast.walk(value))
    )


def _is_part(name: str, names: set[str]) -> bool:
    """Return whether a name is that of an attribute of one of these."""
    return any(name.startswith((f"{other}.", f"{other}[")) for other in names if other != "self")


def last_part(name: str) -> str:
    """Return ``model`` of ``self.model``."""
    return name.rpartition(".")[2]
