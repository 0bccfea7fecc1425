"""Numbers of this worker's share of a batch that leave the loop: printed, kept in a list, added up, decided on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rueda.check.convert.flow import Flow, last_name, text_of
from rueda.check.convert.loaders import targets_of
from rueda.check.convert.losses import Losses

_ASSIGNED = ast.Assign | ast.AnnAssign | ast.NamedExpr
_KEEPS = ("append", "extend")
_SHOWS = ("set_postfix", "set_postfix_str", "set_description", "set_description_str", "log_metric", "log_metrics")
_SAME = {"device", "dtype", "dim", "ndim", "is_cuda", "type", "keys", "requires_grad", "grad_fn"}  # of every share
_PICTURES = {
    "torch.save", "torchvision.utils.save_image", "add_image", "add_images", "add_figure", "add_graph", "add_histogram",
    "savefig", "imshow",
}  # fmt: skip


class OfShare:
    """What training loops compute from this worker's share of a batch, apart from the loss."""

    def __init__(self, flow: Flow, losses: Losses) -> None:
        self._flow, self._script, self._losses = flow, flow.script, losses
        counted = {text_of(each.target) for each in losses.counts()}
        self._known = counted | {text_of(each.targets[0]) for each in losses.means()}
        self._known |= {each.loss for each in (*losses.backwards, *losses.parts)}
        self._names: dict[ast.AST, set[str]] = {}

    def in_expression(self, node: ast.AST, place: ast.AST) -> list[str]:
        """Return the values of a share in an expression that stands in a training loop, as code.

        Args:
            node: the expression, or a statement.
            place: a node in the loop.
        """
        names = self._of_loop(place)
        return list(dict.fromkeys(text_of(self._entire(each)) for each in self._read(node) if each.id in names))

    def _entire(self, name: ast.expr) -> ast.expr:
        """Return the call or item of which a name is a part: ``score(out, y)`` of ``print(score(out, y))``."""
        parent = self._script.parents[name]
        while isinstance(parent, ast.Call | ast.Attribute | ast.Subscript):
            if isinstance(self._script.parents[parent], ast.Expr):
                break  # the statement itself
            name, parent = parent, self._script.parents[parent]
        return name

    def kept(self) -> Iterator[tuple[ast.Expr | ast.AugAssign, str]]:
        """Iterate over the statements that keep or add up a share's values beyond its batch, with what they change."""
        counts = {*self._losses.counts(), *self._losses.averages()}
        for node in self._script.nodes:
            if not isinstance(node, ast.Expr | ast.AugAssign) or node in counts or not self._losses.is_of_batch(node):
                continue
            if isinstance(node, ast.AugAssign):
                holder, value = node.target, [node.value] if isinstance(node.op, ast.Add) else []
            elif isinstance(node.value, ast.Call) and last_name(node.value.func) in _KEEPS:
                assert isinstance(node.value.func, ast.Attribute)
                holder, value = node.value.func.value, node.value.args  # type: ignore[assignment]
            else:
                continue
            is_outer = not self._is_made_in_loop(holder) and text_of(holder) not in self._known
            if is_outer and any(self.in_expression(each, node) for each in value):
                yield node, text_of(holder)

    def shown(self) -> Iterator[ast.stmt]:
        """Iterate over the statements of training loops that tell a bar or a tracker something."""
        for call in self._script.calls:
            is_shown = last_name(call.func) in _SHOWS or self._script.path(call.func) == "wandb.log"
            if is_shown and self._losses.is_of_batch(call):
                yield self._script.statement(call)

    def is_picture(self, statement: ast.stmt) -> bool:
        """Return whether a statement writes a file or a picture, for which any examples will do."""
        call = statement.value if isinstance(statement, ast.Expr) else None
        return isinstance(call, ast.Call) and bool({self._script.path(call.func), last_name(call.func)} & _PICTURES)

    def decisions(self) -> Iterator[tuple[ast.If | ast.While, list[ast.expr], list[str]]]:
        """Iterate over the ``if`` and ``while`` of training loops that compare something of a share.

        Each comes with the sizes of the share in it, and the names of other values.
        """
        for node in self._script.nodes:
            if not isinstance(node, ast.If | ast.While) or not self._losses.is_of_batch(node):
                continue
            compared = [
                each for part in ast.walk(node.test) if isinstance(part, ast.Compare)
                and not any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in part.ops)
                for each in (part.left, *part.comparators)
            ]  # fmt: skip
            compared += [
                each for each in ast.walk(node.test)
                if isinstance(each, ast.Call) and last_name(each.func) in ("any", "all", "item")
            ]  # fmt: skip
            sizes = [each for each in compared if self._losses.is_size(each) and self._named(each, node)]
            others = [name for each in compared if each not in sizes for name in self.in_expression(each, node)]
            if sizes or others:
                yield node, sizes, list(dict.fromkeys(others))

    def _named(self, node: ast.expr, place: ast.AST) -> bool:
        names = self._of_loop(place)
        return any(isinstance(each, ast.Name) and each.id in names for each in ast.walk(node))

    def _is_made_in_loop(self, holder: ast.expr) -> bool:
        while isinstance(holder, ast.Subscript):
            holder = holder.value
        return bool(self._losses.in_loop(text_of(holder), holder))

    def _read(self, node: ast.AST) -> Iterator[ast.Name]:
        """Iterate over the names in a node whose values matter, not their sizes and kinds alone."""
        if isinstance(node, ast.Attribute) and node.attr in _SAME | {"shape"}:
            return
        sizes = {"len", "size", "isinstance", *_SAME}
        if isinstance(node, ast.Call) and (last_name(node.func) in sizes or self._flow.trains(node)):
            return
        if isinstance(node, ast.Name) and node.id not in self._known:
            yield node
        for child in ast.iter_child_nodes(node):
            yield from self._read(child)

    def _of_loop(self, place: ast.AST) -> set[str]:
        """Return the names that hold a batch, or something computed from one, in the training loop around a node."""
        loops = [each for each in self._script.around(place) if each in self._flow.training_loops]
        if not loops:
            return set()
        loop = loops[0]
        if loop not in self._names:
            self._names[loop] = self._followed(loop)
        return self._names[loop]

    def _followed(self, loop: ast.AST) -> set[str]:
        found = targets_of(loop) if isinstance(loop, ast.For) and not _counts_up(loop) else set()
        inner = [each for each in ast.walk(loop) if self._script.function(each) is self._script.function(loop)]
        while True:
            more = set()
            for node in inner:
                value = node.value if isinstance(node, _ASSIGNED) else node.iter if isinstance(node, ast.For) else None
                if node is loop or value is None:
                    continue
                if any(name.id in found for name in self._read(value)) or _is_next(value):
                    more |= {
                        each.id for target in _targets(node) for each in ast.walk(target) if isinstance(each, ast.Name)
                        and isinstance(each.ctx, ast.Store) and each.id not in self._known
                    }  # fmt: skip
            if more <= found:
                return found
            found |= more


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign | ast.NamedExpr | ast.For) else []


def _counts_up(loop: ast.For) -> bool:
    """Return whether a loop is one over numbers, such as those of epochs or steps."""
    return isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) in ("range", "trange", "count")


def _is_next(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and last_name(value.func) == "next"
