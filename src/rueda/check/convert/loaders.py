"""Which DataLoaders training loops read, followed from the loop back to where they are made."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from rueda.check.convert.flow import Flow, last_name, names_in, text_of
from rueda.check.convert.script import Function, Scope

LOADERS = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
_COUNTERS = ("range", "trange", "count", "arange")


@dataclass(frozen=True)
class Source:
    """Where a loader that a training loop reads is made."""

    node: ast.expr
    """the expression that makes it"""
    name: str = ""
    """if it is one of several things that a function returns: the name that it is assigned to"""
    makes: ast.Call | None = None
    """the call of DataLoader, if it is known"""


class Loaders:
    """The loaders of a script."""

    def __init__(self, flow: Flow) -> None:
        self._flow, self._script = flow, flow.script
        self._names: set[tuple[Scope, str]] = set()

    @cached_property
    def shared(self) -> list[Source]:
        """The places at which loaders that training loops read are made, each once."""
        found = {}
        for loop in self._flow.training_loops:
            for node in _read_by(loop):
                for source in self._sources(node, self._script.function(loop), ()):
                    found[source.node, source.name] = source
        return list(found.values())

    @cached_property
    def names(self) -> set[tuple[Scope, str]]:
        """The names that such loaders have, in each function."""
        assert self.shared is not None
        return self._names

    def is_shared(self, node: ast.AST) -> bool:
        """Return whether an expression is the name of such a loader."""
        if not isinstance(node, ast.Name | ast.Attribute):
            return False
        name, function = text_of(node), self._script.function(node)
        if isinstance(node, ast.Attribute):
            return any(name == other for _, other in self.names)
        return (self._flow.scope_of(name, function), name) in self.names

    def whole_uses(self) -> Iterator[ast.expr]:
        """Iterate over the places at which a shared loader is read as a whole: by loops that do not train."""
        for node in self._script.nodes:
            if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
                holder = self._script.parents[node] if isinstance(node, ast.comprehension) else node
                if not self._flow.trains(holder):
                    yield from (
                        each for each in ast.walk(node.iter) if isinstance(each, ast.expr) and self.is_shared(each)
                    )
            elif isinstance(node, ast.Call) and (function := self._flow.called(node)) is not None:
                if function in self._flow.training_functions or function.name == "__init__":
                    continue
                given = [*node.args, *(each.value for each in node.keywords)]
                yield from (each for each in given if self.is_shared(each))
            elif isinstance(node, ast.Attribute) and node.attr in ("batch_size", "sampler", "drop_last"):
                yield from (each for each in [node.value] if self.is_shared(each))

    def is_stream(self, call: ast.Call) -> bool:
        """Return whether a DataLoader's data set is of a class of this script that derives from IterableDataset."""
        streams = {
            name
            for name, each in self._flow.classes.items()
            if any(last_name(base) in ("IterableDataset", "IterDataPipe") for base in each.bases)
        }
        given = [*call.args[:1], *(each.value for each in call.keywords if each.arg == "dataset")]
        values = [each for node in given for each in (node, *(v for _, v in self._flow.assignments(text_of(node))))]
        return any(isinstance(value, ast.Call) and last_name(value.func) in streams for value in values)

    # From a loop back to the loader.

    def _sources(self, node: ast.expr, scope: Scope, seen: tuple[object, ...]) -> list[Source]:
        key = (node, scope)
        if key in seen or len(seen) > 40:
            return []
        seen = (*seen, key)
        if isinstance(node, ast.Call):
            return self._sources_of_call(node, scope, seen)
        if isinstance(node, ast.Name | ast.Attribute):
            return self._sources_of_name(node, scope, seen)
        if isinstance(node, ast.IfExp):
            return [each for part in (node.body, node.orelse) for each in self._sources(part, scope, seen)]
        if isinstance(node, ast.NamedExpr | ast.Await | ast.Starred):
            return self._sources(node.value, scope, seen)
        if isinstance(node, ast.Subscript):
            return self._sources_of_item(node, scope, seen)
        return []

    def _sources_of_call(self, call: ast.Call, scope: Scope, seen: tuple[object, ...]) -> list[Source]:
        if self._script.path(call.func) in LOADERS:
            return [Source(call, makes=call)]
        if last_name(call.func) in _COUNTERS:
            return []
        function = self._flow.called(call)
        if function is not None and function.name != "__init__":
            made = [each for value in _returned(function) for each in self._sources(value, function, seen)]
            if made:
                return [Source(call, makes=made[0].makes)]
        return [each for part in call.args for each in self._sources(part, scope, seen)]

    def _sources_of_name(self, node: ast.Name | ast.Attribute, scope: Scope, seen: tuple[object, ...]) -> list[Source]:
        name = text_of(node)
        found: list[Source] = []
        if isinstance(node, ast.Attribute):
            name = f"self.{node.attr}"
            home: Scope = scope
            assigned = self._flow.assignments(name)
        else:
            home = self._flow.scope_of(name, scope)
            assigned = self._flow.assignments(name, home)
            if name in self._flow.parameters(home):
                for given in self._flow.arguments(home, name):
                    found += self._sources(given, self._script.function(given), seen)
        for statement, value in assigned:
            inner = self._script.function(statement)
            found += self._of_several(statement, value, name, seen) or self._sources(value, inner, seen)
        if found:
            self._names.add((home, name))
        return found

    def _of_several(self, statement: ast.AST, value: ast.expr, name: str, seen: tuple[object, ...]) -> list[Source]:
        """Follow ``train, valid = make_loaders()`` into the function."""
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        tuples = [each for each in targets if isinstance(each, ast.Tuple)]
        function = self._flow.called(value) if isinstance(value, ast.Call) else None
        if not tuples or function is None:
            return []
        place = [text_of(each) for each in tuples[0].elts].index(name)
        for returned in _returned(function):
            if isinstance(returned, ast.Tuple) and len(returned.elts) == len(tuples[0].elts):
                made = self._sources(returned.elts[place], function, seen)
                if made:
                    return [Source(value, name=name, makes=made[0].makes)]
        return []

    def _sources_of_item(self, node: ast.Subscript, scope: Scope, seen: tuple[object, ...]) -> list[Source]:
        """Follow ``loaders["train"]`` into the dictionary."""
        for _, value in self._flow.assignments(text_of(node.value)):
            if isinstance(value, ast.Dict):
                for key, item in zip(value.keys, value.values, strict=True):
                    if key is not None and text_of(key) == text_of(node.slice):
                        return self._sources(item, scope, seen)
        return []


def _read_by(loop: ast.AST) -> list[ast.expr]:
    """Return what a loop iterates over, or takes by ``next``."""
    found: list[ast.expr] = []
    if isinstance(loop, ast.For | ast.AsyncFor):
        found.append(loop.iter)
    elif isinstance(loop, ast.ListComp | ast.GeneratorExp | ast.SetComp):
        found += [each.iter for each in loop.generators]
    for call in ast.walk(loop):
        if isinstance(call, ast.Call) and last_name(call.func) == "next" and call.args:
            found.append(call.args[0])
    return found


def _returned(function: Function) -> list[ast.expr]:
    """Return what a function returns."""
    found = [each.value for each in ast.walk(function) if isinstance(each, ast.Return) and each.value is not None]
    return list(found)


def targets_of(loop: ast.AST) -> set[str]:
    """Return the names that a loop assigns; not the number that ``enumerate`` gives."""
    if not isinstance(loop, ast.For | ast.AsyncFor):
        return set()
    target, call = loop.target, loop.iter
    is_enumerated = any(isinstance(each, ast.Call) and last_name(each.func) == "enumerate" for each in ast.walk(call))
    if is_enumerated and isinstance(target, ast.Tuple) and len(target.elts) == 2:
        return set(names_in(target.elts[1]))
    return set(names_in(target))
