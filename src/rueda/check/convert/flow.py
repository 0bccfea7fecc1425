"""How values reach places in a script: which functions train, who calls whom, what was assigned to a name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from rueda.check.convert.script import Function, Scope, Script

Loop = ast.For | ast.AsyncFor | ast.While | ast.ListComp | ast.GeneratorExp | ast.SetComp
_COMMON = {"train", "eval", "step", "to", "update", "fit", "run", "forward", "__call__"}  # methods of many objects
_Assigned = ast.Assign | ast.AnnAssign | ast.NamedExpr


class Flow:
    """Functions, calls and assignments of a script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.functions = [node for node in script.nodes if isinstance(node, Function)]
        self._called: dict[ast.Call, Function | None] = {}
        self._training: dict[ast.AST, bool] = {}
        self._assigned: dict[tuple[str, Scope | None], list[tuple[_Assigned, ast.expr]]] = {}
        self.classes = {node.name: node for node in script.nodes if isinstance(node, ast.ClassDef)}

    # Who calls whom.

    def is_method(self, function: Scope) -> bool:
        """Return whether a function is a method."""
        return isinstance(self.script.parents.get(function), ast.ClassDef)

    def calls_to(self, function: Scope) -> list[ast.Call]:
        """Return the calls of a function of the script; those of a class for its ``__init__``."""
        return [call for call in self.script.calls if isinstance(function, Function) and self._calls(call, function)]

    def called(self, call: ast.Call) -> Function | None:
        """Return the function of the script that a call runs."""
        if call not in self._called:
            self._called[call] = next((each for each in self.functions if self._calls(call, each)), None)
        return self._called[call]

    def _calls(self, call: ast.Call, function: Function) -> bool:
        holder = self.script.parents.get(function)
        if not isinstance(holder, ast.ClassDef):
            return isinstance(call.func, ast.Name) and call.func.id == function.name
        if function.name == "__init__":
            return last_name(call.func) == holder.name
        if not isinstance(call.func, ast.Attribute) or call.func.attr != function.name:
            return False
        if isinstance(call.func.value, ast.Name) and call.func.value.id == "self":
            return self.script.class_of(call) is holder
        return function.name not in _COMMON or self._is_instance(call.func.value, holder)

    def _is_instance(self, node: ast.expr, holder: ast.ClassDef) -> bool:
        values = [node, *(value for _, value in self.assignments(text_of(node)))]
        return any(isinstance(value, ast.Call) and last_name(value.func) == holder.name for value in values)

    def parameters(self, function: Scope) -> list[str]:
        """Return the names of a function's parameters, without ``self``."""
        if not isinstance(function, Function):
            return []
        names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        is_static = any(last_name(each) == "staticmethod" for each in function.decorator_list)
        names = names[1:] if self.is_method(function) and not is_static else names
        return names + [each.arg for each in function.args.kwonlyargs]

    def arguments(self, function: Scope, parameter: str) -> list[ast.expr]:
        """Return what is given for a parameter, in all calls of its function."""
        place = self.parameters(function).index(parameter)
        found = []
        for call in self.calls_to(function):
            named = [each.value for each in call.keywords if each.arg == parameter]
            found += named or [each for each in call.args[place : place + 1] if not isinstance(each, ast.Starred)]
        return found

    # What was assigned.

    def assignments(self, name: str, scope: Scope | None = None) -> list[tuple[_Assigned, ast.expr]]:
        """Return the assignments to a name, with the value; of a tuple the name's part if it is known.

        Args:
            name: a name, or an attribute as ``self.loader``.
            scope: the function in which they stand; by default anywhere.
        """
        key = (name, scope)
        if key not in self._assigned:
            self._assigned[key] = list(self._assignments(name, scope))
        return self._assigned[key]

    def _assignments(self, name: str, scope: Scope | None) -> Iterator[tuple[_Assigned, ast.expr]]:
        for node in self.script.nodes:
            if not isinstance(node, _Assigned) or node.value is None:
                continue
            if scope is not None and self.script.function(node) is not scope:
                continue
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if text_of(target) == name:
                    yield node, node.value
                elif isinstance(target, ast.Tuple | ast.List):
                    for place, each in enumerate(target.elts):
                        if text_of(each) == name:
                            is_tuple = isinstance(node.value, ast.Tuple | ast.List)
                            parts = node.value.elts if isinstance(node.value, ast.Tuple | ast.List) else []
                            fits = is_tuple and len(parts) == len(target.elts)
                            yield node, parts[place] if fits else node.value

    def scope_of(self, name: str, scope: Scope) -> Scope:
        """Return the function, around a place, in which a name is assigned or is a parameter; or else the module."""
        for each in (scope, *(outer for outer in self.script.around(scope) if isinstance(outer, Scope))):
            if name in self.parameters(each) or self.assignments(name, each):
                return each
        return self.script.tree

    # What trains.

    @cached_property
    def training_functions(self) -> set[ast.AST]:
        """Functions that run a backward pass, or call one that does."""
        found: set[ast.AST] = set()
        while True:
            more = {each for each in self.functions if each not in found and self._trains(each, found)}
            if not more:
                return found
            found |= more

    def trains(self, node: ast.AST) -> bool:
        """Return whether a backward pass runs in a node, or in a function that it calls."""
        if node not in self._training:
            self._training[node] = self._trains(node, self.training_functions)
        return self._training[node]

    def _trains(self, node: ast.AST, functions: set[ast.AST]) -> bool:
        names = {each.name for each in functions if isinstance(each, Function) and not self.is_method(each)}
        for call in (each for each in ast.walk(node) if isinstance(each, ast.Call)):
            if last_name(call.func) == "backward" or self.called(call) in functions:
                return True
            if any(isinstance(each, ast.Name) and each.id in names for each in call.args):  # optimizer.step(closure)
                return True
        return False

    @cached_property
    def training_loops(self) -> list[Loop]:
        """Loops, of any kind, in which a backward pass runs."""
        return [node for node in self.script.nodes if isinstance(node, Loop) and self.trains(node)]

    @cached_property
    def epoch_loops(self) -> list[ast.stmt]:
        """The outermost statements that train, in every function: a loop, or a call."""
        found = []
        for scope in [self.script.tree, *self.training_functions]:
            for loop in self.training_loops:
                outer = [each for each in self.script.around(loop) if isinstance(each, Loop)]
                if self.script.function(loop) is scope and not any(each in self.training_loops for each in outer):
                    found.append(self.script.statement(loop))
        return found

    def is_in_training_loop(self, node: ast.AST) -> bool:
        """Return whether a node stands in a loop that trains, or in a function that such a loop calls to train."""
        if any(each in self.training_loops for each in self.script.around(node)):
            return True
        function = self.script.function(node)
        return function in self.training_functions and any(
            isinstance(each, ast.Call) and last_name(each.func) == "backward" for each in ast.walk(function)
        )


def last_name(node: ast.AST) -> str:
    """Return the last part of a name: ``SGD`` of ``torch.optim.SGD``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def text_of(node: ast.AST) -> str:
    """Return the code of a node, in Python's own form."""
    return ast.unparse(node)


def names_in(node: ast.AST) -> Iterator[str]:
    """Iterate over the plain names in a node."""
    return (each.id for each in ast.walk(node) if isinstance(each, ast.Name))
