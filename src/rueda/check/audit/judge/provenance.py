"""Where a number in a script comes from: whether the learning rate or the batch size depends on the number of workers.

The text is read as a syntax tree. A name depends on the number of workers if it is assigned from an expression that
asks for it (``get_world_size()``, ``hvd.size()``, ``os.environ["WORLD_SIZE"]``, ``fabric.world_size``) or from a name
that does. Names are taken together wherever they are used: a function's parameter depends on what any call passes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

_SIZE = re.compile(
    r"world_?size|num_processes|num_replicas|\bn_?gpus\b|num_workers_total|num_nodes|nprocs", re.IGNORECASE
)
_SCHEDULE = re.compile(r"LR$|schedule|warm", re.IGNORECASE)
_RATE = re.compile(r"\blr\b|learning_?rate", re.IGNORECASE)


class Provenance:
    """A script whose numbers are followed.

    >>> script = Provenance("n = dist.get_world_size()\\nrate = 0.1 * n\\nopt = SGD(model.parameters(), lr=rate)")
    >>> script.depends_on_size("", "lr", 3)
    True
    >>> Provenance("opt = SGD(model.parameters(), lr=args.lr)").depends_on_size("", "lr", 1)
    False
    """

    def __init__(self, text: str) -> None:
        self._tree = ast.parse(text)
        self._sized = self._names_of_size()

    def depends_on_size(self, function: str, argument: str, line: int) -> bool:
        """Return whether an argument of the call at a line depends on the number of workers.

        Args:
            function: the end of the function's name; empty: any.
            argument: the keyword; ``lr`` is also the second positional argument, ``batch_size`` as well.
            line: the line where the call begins.
        """
        for node in ast.walk(self._tree):
            if not isinstance(node, ast.Call) or not node.lineno <= line <= (node.end_lineno or node.lineno):
                continue
            if function and not ast.unparse(node.func).endswith(function):
                continue
            given = [one.value for one in node.keywords if one.arg == argument]
            if not given and len(node.args) > 1:
                given = [node.args[1]]
            given += [one.value for one in node.keywords if one.arg is None]  # **options
            if any(self._asks(one) for one in given):
                return True
        return False

    def rate_changes_with_size(self) -> bool:
        """Return whether the script computes or sets a rate from the number of workers anywhere.

        Such as ``group["lr"] = rate * hvd.size()``, ``args.lr *= world_size``, or the factor of a schedule.
        """
        for node in ast.walk(self._tree):
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(_RATE.search(ast.unparse(one)) for one in targets) and self._asks(node.value):
                    return True
            if not isinstance(node, ast.Call) or not _SCHEDULE.search(ast.unparse(node.func)):
                continue
            if any(self._asks(one) for one in (*node.args, *(key.value for key in node.keywords))):
                return True
        return False

    def _names_of_size(self) -> set[str]:
        found: set[str] = set()
        while True:
            self._sized = found
            more = set(found)
            for node in ast.walk(self._tree):
                if (
                    isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr))
                    and node.value is not None
                ):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    if self._asks(node.value):
                        more |= self._targets(targets, node.value)
            more |= self._passed()
            if more == found:
                return found
            found = more

    def _targets(self, targets: Sequence[ast.expr], value: ast.expr) -> set[str]:
        """Return the names that get a value; of ``a, b = x, y`` only those whose part asks for the size."""
        found = set()
        for target in targets:
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
                for one, part in zip(target.elts, value.elts, strict=True):
                    if self._asks(part):
                        found.add(ast.unparse(one))
            elif isinstance(target, (ast.Name, ast.Attribute, ast.Subscript)):
                found.add(ast.unparse(target))
        return found

    def _passed(self) -> set[str]:
        """Return the parameters of the script's functions to which a call passes a value that depends on the size."""
        functions = {node.name: node for node in ast.walk(self._tree) if isinstance(node, ast.FunctionDef)}
        found = set()
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions:
                names = [one.arg for one in functions[node.func.id].args.args]
                pairs = [*zip(names, node.args, strict=False), *((key.arg, key.value) for key in node.keywords)]
                found |= {name for name, value in pairs if name and self._asks(value)}
        return found

    def _asks(self, node: ast.AST) -> bool:
        """Return whether an expression asks for the number of workers, or names something that depends on it."""
        for one in ast.walk(node):
            if isinstance(one, ast.Call) and re.search(
                r"\b(hvd|horovod\S*|world|dist)\.size$|world_size$", ast.unparse(one.func)
            ):
                return True
            if isinstance(one, (ast.Name, ast.Attribute)):
                text = ast.unparse(one)
                if text in self._sized or _SIZE.search(text) or re.search(r"\bworld\.size$", text):
                    return True
            if isinstance(one, ast.Constant) and isinstance(one.value, str) and _SIZE.search(one.value):
                return True
        return False
