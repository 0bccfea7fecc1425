"""Whether a number that is computed from a batch is a count over its examples, or a mean over them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from rueda.check.convert.flow import last_name, text_of

COUNT, MEAN = "count", "mean"
_OF_BATCH = re.compile(r"\blen\((?!\w*loader|.*dataset)|\.size\(|\.shape\[|\.numel\(")
_COUNTING = ("sum", "len", "numel", "count_nonzero")
_LIKE = ("item", "float", "double", "int", "long", "cpu", "detach", "numpy", "tolist", "type")


def kind_of(node: ast.expr, values: Callable[[str], list[ast.expr]], depth: int = 0) -> str:
    """Return whether a number is a count over a batch or a mean; nothing if that is not known.

    >>> def kind(code): return kind_of(ast.parse(code, mode="eval").body, lambda name: [])
    >>> kind("(p == y).sum().item()"), kind("(p == y).sum().item() / len(y)"), kind("100 * (p == y).float().mean()")
    ('count', 'mean', 'mean')

    Args:
        node: the number.
        values: what a name was assigned to in the loop.
        depth: how many assignments were followed.
    """
    if depth > 12:
        return ""
    if isinstance(node, ast.BinOp):
        return _of_operation(node, values, depth)
    if isinstance(node, ast.Name):
        kinds = {kind_of(value, values, depth + 1) for value in values(node.id)}
        return kinds.pop() if len(kinds) == 1 else ""
    if isinstance(node, ast.Subscript):
        return COUNT if text_of(node).endswith(".shape[0]") else kind_of(node.value, values, depth + 1)
    if not isinstance(node, ast.Call):
        return ""
    name = last_name(node.func)
    if name == "mean":
        return MEAN
    if name in _COUNTING or text_of(node).endswith(".size(0)"):
        return COUNT
    if name in _LIKE:
        inner = node.func.value if isinstance(node.func, ast.Attribute) else node.args[0] if node.args else None
        return kind_of(inner, values, depth + 1) if inner is not None else ""
    return ""


def _of_operation(node: ast.BinOp, values: Callable[[str], list[ast.expr]], depth: int) -> str:
    left, right = (kind_of(each, values, depth + 1) for each in (node.left, node.right))
    sizes = [is_size(each, values) for each in (node.left, node.right)]
    if isinstance(node.op, ast.Div):
        return MEAN if left == COUNT and sizes[1] else left
    if isinstance(node.op, ast.Mult) and ((left == MEAN and sizes[1]) or (right == MEAN and sizes[0])):
        return COUNT
    return left or right if not (left and right) or left == right else ""


def is_size(node: ast.expr, values: Callable[[str], list[ast.expr]]) -> bool:
    """Return whether an expression has the number of a batch's examples in it, as this worker counts them."""
    names = [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]
    return any(_OF_BATCH.search(text_of(each)) for each in (node, *(value for name in names for value in values(name))))
