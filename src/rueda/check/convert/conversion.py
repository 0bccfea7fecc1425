"""Turn a serial script into a parallel one, step by step: share, wrap, average the metric, one writer, connect."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from rueda.check.convert.edits import Edits, Inline
from rueda.check.convert.flow import Flow
from rueda.check.convert.joint import Joint, take_out
from rueda.check.convert.loaders import Loaders
from rueda.check.convert.losses import Losses
from rueda.check.convert.models import Models
from rueda.check.convert.script import Script, split_lines
from rueda.check.convert.styles import STYLES, Style
from rueda.check.convert.writes import Writes
from rueda.check.scale.parallel import library_in
from rueda.errors import ScaleError

TODO = "# TODO(rueda): "


@dataclass(frozen=True)
class Conversion:
    """A converted script."""

    before: bytes
    after: bytes
    warnings: tuple[str, ...]
    """what was not sure, each with its line in the serial script; the text has a ``TODO(rueda)`` there"""


@dataclass
class Plan:
    """What the steps share: the script, what was found in it, the edits so far, and the warnings."""

    script: Script
    style: Style
    edits: Edits
    flow: Flow
    loaders: Loaders
    models: Models
    losses: Losses
    writes: Writes
    warnings: list[tuple[int, str, str]]
    """the number of the line in question, its first words, and what is not sure"""
    uses_files: bool = False
    """whether ``os.devnull`` is needed"""

    @classmethod
    def of(cls, script: Script, style: Style) -> Plan:
        """Read a script."""
        flow = Flow(script)
        return cls(
            script, style, Edits(script), flow, Loaders(flow), Models(flow), Losses(flow), Writes(flow), [],
        )  # fmt: skip

    @property
    def head(self) -> ast.stmt | None:
        """The last of the imports at the head of the script; that of torch is among them."""
        found = None
        is_over = False
        for statement in self.script.tree.body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                is_torch = any(each.name.partition(".")[0] == "torch" for each in statement.names) or (
                    isinstance(statement, ast.ImportFrom) and (statement.module or "").partition(".")[0] == "torch"
                )
                found = statement if is_torch or not is_over else found
            elif found is not None and not is_import_block(statement):
                is_over = True
        return found

    def todo(self, node: ast.AST, what: str) -> None:
        """Say in the text, and in a warning, that something is not sure."""
        statement = self.script.statement(node)
        self.edits.before(statement, TODO + what)
        warning = (statement.lineno, self.script.source(statement).splitlines()[0], what)
        if warning not in self.warnings:
            self.warnings.append(warning)


def is_import_block(statement: ast.stmt) -> bool:
    """Return whether a statement is a ``try`` or an ``if`` around imports."""
    if not isinstance(statement, ast.Try | ast.If):
        return False
    return any(isinstance(each, ast.Import | ast.ImportFrom) for each in statement.body)


def convert(content: bytes, *, to: str, name: str = "train.py") -> Conversion:
    """Make a serial training script parallel.

    Args:
        content: the script's bytes.
        to: ``ddp``, ``rueda`` or ``horovod``.
        name: how the script is called in messages.

    Raises:
        ScaleError: the script is no Python, is parallel already, or has no training loop that is understood.
    """
    if to not in STYLES:
        raise ScaleError("--to", expected=" or ".join(STYLES), got=to, do="choose one")
    script = Script(content, name)
    library = library_in(script.text.decode())
    if library:
        raise ScaleError(name, expected="a serial script", got=f"one that uses {library}", do="run it with `rueda run`")
    while True:
        plan = Plan.of(script, _named(STYLES[to], script))
        joint = Joint(plan.flow, plan.models, plan.writes, is_wrapped=bool(plan.style.wrap))
        try:
            if (call := joint.first()) is not None:
                script = take_out(script, call)
                continue
            after = _converted(plan)
            break
        except Inline as inline:  # print(x) of `if x: print(x)` gets a line of its own, then all is read again
            script = split_lines(script, [inline.statement])
    try:
        Script(after, name)  # what was written is read again before anybody gets it
    except ScaleError as error:
        got = f"an edit that is none ({error})"
        raise ScaleError(name, expected="edits that leave Python", got=got, do="report it, please") from None
    return Conversion(content, after, tuple(_located(plan, content)))


def _converted(plan: Plan) -> bytes:
    from rueda.check.convert.steps import connecting, metrics, sharing, wrapping, writing

    name = plan.script.name
    if not plan.losses.backwards:
        got = "no call of backward()"
        raise ScaleError(name, expected="a loop that trains", got=got, do="convert the script that trains")
    if not plan.models.found:
        do = f"`rueda scale -np 2 {name}` runs it as it is"
        raise ScaleError(name, expected="a model whose parameters an optimizer has", got="none", do=do)
    sharing.share(plan)
    wrapping.wrap(plan)
    metrics.average(plan)
    writing.let_one_write(plan)
    connecting.connect(plan)
    return plan.edits.apply()


def _named(style: Style, script: Script) -> Style:
    """Return a style whose own names do not clash with those of the script."""
    from dataclasses import fields, replace

    other = {}
    if style.name == "ddp" and "dist" in script.names and script.imports.get("dist") != "torch.distributed":
        other = {"import torch.distributed as dist": "import torch.distributed", "dist.": "torch.distributed."}
    if style.name == "rueda" and "world" in script.names:
        free = script.free_name("workers")
        other = {"world.": f"{free}.", "world = ": f"{free} = "}
    if not other:
        return style

    def renamed(text: object) -> object:
        if isinstance(text, str):
            for old, new in other.items():
                text = text.replace(old, new)
            return text
        return tuple(renamed(each) for each in text) if isinstance(text, tuple) else text

    return replace(style, **{each.name: renamed(getattr(style, each.name)) for each in fields(style)})  # type: ignore[arg-type]


def _located(plan: Plan, content: bytes) -> list[str]:
    """Return the warnings with the numbers of their lines in the file as it was."""
    lines = content.decode(plan.script.encoding).encode().splitlines()
    found = []
    for number, words, what in plan.warnings:
        if plan.script.content != content:  # lines were split: the last one that has these words, up to there
            places = [n for n, line in enumerate(lines[:number], 1) if words.strip().encode() in line]
            number = places[-1] if places else number
        found.append(f"{plan.script.name}:{number}: {what}")
    return found
