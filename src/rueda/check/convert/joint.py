"""Calls in which all workers take part, taken out of the lines that one worker runs.

``print(evaluate(model, loader))`` on rank 0 alone would let it wait for ever: a wrapped model exchanges gradients in
training, and buffers such as those of batch norm even in an evaluation. So all workers call, and one prints::

    evaluate_result = evaluate(model, loader)
    print(evaluate_result)
"""

from __future__ import annotations

import ast
import copy

from rueda.check.convert.edits import Inline
from rueda.check.convert.flow import Flow, last_name, text_of
from rueda.check.convert.models import Models, last_part
from rueda.check.convert.script import Function, Script
from rueda.check.convert.writes import Writes

_WHY = "# All workers take part in this call; only what comes of it is written by one of them."
_OWN = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.IfExp, ast.BoolOp)


class Joint:
    """The joint calls of a script."""

    def __init__(self, flow: Flow, models: Models, writes: Writes, *, is_wrapped: bool) -> None:
        """Read a script.

        Args:
            flow: its functions and calls.
            models: its models.
            writes: its statements that one worker runs.
            is_wrapped: whether models are wrapped, so that each call of one may wait for the other workers.
        """
        self._flow, self._script, self._writes = flow, flow.script, writes
        self._found = models.found if is_wrapped else []

    def first(self) -> ast.Call | None:
        """Return the first joint call within a statement that one worker runs, the outermost where they are nested."""
        for statement in self._writes.statements:
            for call in (each for each in ast.walk(statement) if isinstance(each, ast.Call)):
                if call is not getattr(statement, "value", None) and self._is_joint(call):
                    return call
        return None

    def _is_joint(self, call: ast.Call) -> bool:
        if any(isinstance(each, _OWN) for each in self._inside(call)):
            return False  # it may run never, or many times
        names = {last_part(model.name) for model in self._found if not self._is_before(call, model.place)}
        return self._flow.trains(call) or self._calls(call, names, ())

    def _inside(self, call: ast.Call) -> list[ast.AST]:
        """Return the expressions around a call."""
        around = []
        for each in self._script.around(call):
            if isinstance(each, ast.stmt):
                break
            around.append(each)
        return around

    def _is_before(self, call: ast.Call, place: ast.stmt) -> bool:
        """Return whether a call runs before its model is wrapped."""
        return self._script.function(call) is self._script.function(place) and call.lineno < place.lineno

    def _calls(self, call: ast.Call, names: set[str], seen: tuple[ast.AST, ...]) -> bool:
        """Return whether a model with one of these names is called, here or in the function that is called."""
        if last_name(call.func) in names:
            return True
        function = self._flow.called(call)
        if function is None or function in seen or function.name in ("__init__", "forward"):
            return False
        own = set(self._flow.parameters(function))
        inner = (names - own) | {
            name
            for name in own
            for given in _given(call, self._flow.parameters(function), name)
            if last_name(given) in names
        }
        return any(self._calls(each, inner, (*seen, function)) for each in _calls_in(function))


def _given(call: ast.Call, parameters: list[str], name: str) -> list[ast.expr]:
    """Return what a call gives for a parameter."""
    place = parameters.index(name)
    return [*call.args[place : place + 1], *(each.value for each in call.keywords if each.arg == name)]


def _calls_in(function: Function) -> list[ast.Call]:
    return [each for each in ast.walk(function) if isinstance(each, ast.Call)]


def take_out(script: Script, call: ast.Call) -> Script:
    """Return the script with a call on a line of its own, before the statement in which it stands.

    >>> script = Script(b"if x:\\n    print('loss', train(1))\\n", "train.py")
    >>> print(take_out(script, script.calls[1]).text.decode(), end="")
    if x:
        # All workers take part in this call; only what comes of it is written by one of them.
        train_result = train(1)
        print('loss', train_result)

    Raises:
        Inline: the statement shares its line with others.
    """
    statement = script.statement(call)
    if script.is_inline(statement):
        raise Inline(statement)
    name = script.free_name(f"{last_name(call.func)}_result".lstrip("_"))
    (low, high), (start, end) = script.span(call), script.span(statement)
    if script.is_placed(call):
        own = script.source(call)
        line = script.text[start:low].decode() + name + script.text[high:end].decode()
    else:  # in an f-string, before Python 3.12
        own, line = text_of(call), text_of(_replaced(statement, call, name))
    indentation, newline = script.indentation(statement), script.newline
    lines = newline.join(f"{indentation}{each}" for each in (_WHY, f"{name} = {own}"))
    head, tail = script.text[: script.start(statement)].decode(), script.text[end:].decode()
    text = f"{head}{lines}{newline}{indentation}{line}{tail}"
    return Script(text.encode(script.encoding), script.name)


def _replaced(statement: ast.stmt, call: ast.Call, name: str) -> ast.stmt:
    """Return a copy of a statement with a name for a call."""
    place = list(ast.walk(statement)).index(call)
    found = copy.deepcopy(statement)
    other = list(ast.walk(found))[place]

    class Put(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.expr:
            self.generic_visit(node)
            return ast.Name(name, ast.Load()) if node is other else node

    changed = Put().visit(found)
    assert isinstance(changed, ast.stmt)
    return changed
