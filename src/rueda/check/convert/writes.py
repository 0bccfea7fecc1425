"""Statements that print, write files or tell an experiment tracker: rank 0 alone does it."""

from __future__ import annotations

import ast
import re
from functools import cached_property

from rueda.check.convert.flow import Flow, last_name, text_of
from rueda.check.convert.script import Function

_FUNCTIONS = {
    "print", "sys.stdout.write", "sys.stderr.write", "sys.stdout.flush", "sys.stderr.flush", "torch.save",
    "os.makedirs", "os.mkdir", "os.remove", "os.rename", "os.replace", "os.unlink", "os.symlink", "os.rmdir",
    "shutil.rmtree", "shutil.copy", "shutil.copyfile", "shutil.copy2", "shutil.move", "shutil.copytree",
    "json.dump", "pickle.dump", "yaml.dump", "numpy.save", "numpy.savez", "numpy.savetxt", "logging.basicConfig",
    "matplotlib.pyplot.savefig", "matplotlib.pyplot.show", "torchvision.utils.save_image", "tqdm.tqdm.write",
    "tqdm.write", "pprint.pprint", "torchinfo.summary", "joblib.dump", "safetensors.torch.save_file",
}  # fmt: skip
_METHODS = {
    "mkdir", "write_text", "write_bytes", "savefig", "to_csv", "to_json", "save_pretrained", "unlink", "touch",
    "writerow", "writerows", "writeheader", "add_scalar", "add_scalars", "add_image", "add_images", "add_histogram",
    "add_graph", "add_text", "add_figure", "add_hparams",
}  # fmt: skip
_LEVELS = {"debug", "info", "warning", "error", "critical", "exception", "log"}
_READS = {"torch.load", "numpy.load", "json.load", "pickle.load", "open", "safetensors.torch.load_file"}
_READING_METHODS = {"read_text", "read_bytes"}
_BARS = {"tqdm.tqdm", "tqdm.trange", "tqdm.auto.tqdm", "tqdm.auto.trange", "tqdm.notebook.tqdm", "tqdm.rich.tqdm"}
_WRITERS = {"SummaryWriter"}
_ASKS = re.compile(r"\b(exists|isfile|is_file|getsize|listdir|glob|iterdir)\(")
_DOWNLOADS = re.compile(r"\bdownload\s*=\s*True")


class Writes:
    """What a script writes and reads."""

    def __init__(self, flow: Flow) -> None:
        self._flow, self._script = flow, flow.script

    @cached_property
    def statements(self) -> list[ast.stmt]:
        """Statements that print, save or write, and nothing else; of those within each other the outermost."""
        found: list[ast.stmt] = []
        for node in self._script.nodes:
            if (isinstance(node, ast.Expr) and self._writes(node.value)) or self._is_block_of_writes(node):
                assert isinstance(node, ast.stmt)
                found.append(node)
        inside = {id(each) for outer in found for each in ast.walk(outer) if each is not outer}
        return [each for each in found if id(each) not in inside]

    def outermost(self, statement: ast.stmt) -> ast.stmt:
        """Return the statement of rank 0 alone that holds another one; or else that one."""
        around = [each for each in self._script.around(statement) if each in self.statements]
        return around[-1] if around and isinstance(around[-1], ast.stmt) else statement

    def _writes(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Await):
            node = node.value
        if not isinstance(node, ast.Call):
            return False
        path = self._script.path(node.func)
        if path in _FUNCTIONS or (
            path.partition(".")[0] == "matplotlib" and last_name(node.func) in ("savefig", "show")
        ):
            return True
        if not isinstance(node.func, ast.Attribute):
            return False
        if node.func.attr in _METHODS:
            return True
        holder = text_of(node.func.value)
        if node.func.attr in _LEVELS and (path.startswith("logging.") or "log" in holder.lower()):
            return not self._flow.trains(node)
        if holder in self.trackers:
            return True
        return node.func.attr == "dump" and bool(node.args)

    def _is_block_of_writes(self, node: ast.AST) -> bool:
        """Return whether a node is a ``with open(..., "w")`` in which nothing is trained, assigned or returned."""
        if not isinstance(node, ast.With) or not any(self.opens_for_writing(item.context_expr) for item in node.items):
            return False
        kept = (ast.Assign, ast.Return, ast.Yield, ast.AugAssign)
        return not self._flow.trains(node) and not any(isinstance(each, kept) for each in ast.walk(node))

    def opens_for_writing(self, node: ast.AST) -> bool:
        """Return whether an expression opens a file in order to write it."""
        if not isinstance(node, ast.Call) or last_name(node.func) != "open":
            return False
        place = 0 if isinstance(node.func, ast.Attribute) and self._script.path(node.func) != "io.open" else 1
        given = [*node.args[place : place + 1], *(each.value for each in node.keywords if each.arg == "mode")]
        modes = [each.value for each in given if isinstance(each, ast.Constant)]
        return any(isinstance(mode, str) and bool(set(mode) & set("wax+")) for mode in modes)

    @cached_property
    def opened(self) -> list[ast.Call]:
        """Calls of ``open`` for writing, and of ``logging.FileHandler``, whose file is kept."""
        inside = {id(each) for outer in self.statements for each in ast.walk(outer)}
        return [
            call for call in self._script.calls
            if call.args and id(call) not in inside and (
                (isinstance(call.func, ast.Name) and self.opens_for_writing(call))
                or self._script.path(call.func) == "logging.FileHandler"
            )
        ]  # fmt: skip

    # Trackers, bars and downloads.

    @cached_property
    def summary_writers(self) -> list[ast.Call]:
        """Calls that make a TensorBoard writer."""
        return [call for call in self._script.calls if last_name(call.func) in _WRITERS]

    @cached_property
    def trackers(self) -> set[str]:
        """What TensorBoard writers are assigned to."""
        found = set()
        for call in self.summary_writers:
            statement = self._script.statement(call)
            if isinstance(statement, ast.Assign):
                found |= {text_of(target) for target in statement.targets}
        return found

    @cached_property
    def bars(self) -> list[ast.Call]:
        """Progress bars of tqdm that do not say ``disable`` themselves."""
        return [
            call for call in self._script.calls
            if self._script.path(call.func) in _BARS and not any(each.arg == "disable" for each in call.keywords)
        ]  # fmt: skip

    @cached_property
    def downloads(self) -> list[ast.stmt]:
        """Statements that download data."""
        found = [node for node in self._script.nodes if isinstance(node, ast.Assign | ast.Expr)]
        return [node for node in found if _DOWNLOADS.search(text_of(node))]

    # What is read again.

    @cached_property
    def reads(self) -> list[ast.stmt]:
        """Statements that read a file, after one that writes files in the text."""
        first = min((each.lineno for each in self.statements if self._makes_files(each)), default=0)
        written = {id(each) for outer in self.statements for each in ast.walk(outer)}
        found: list[ast.stmt] = []
        for call in self._script.calls:
            reads = self._script.path(call.func) in _READS or last_name(call.func) in _READING_METHODS
            if reads and first and call.lineno > first and not self.opens_for_writing(call) and id(call) not in written:
                statement = self._asks_first(self._script.statement(call))
                if not any(each is statement or statement in ast.walk(each) for each in found):
                    found.append(statement)
        return found

    def _asks_first(self, statement: ast.stmt) -> ast.stmt:
        """Return the ``if`` around a statement that asks whether its file exists, or else the statement.

        A worker that asks before rank 0 has written the file gets another answer, and would not wait with the others.
        """
        for around in self._script.around(statement):
            if isinstance(around, Function):
                break
            if isinstance(around, ast.If) and _ASKS.search(text_of(around.test)):
                return around
        return statement

    def _makes_files(self, statement: ast.stmt) -> bool:
        if isinstance(statement, ast.With):
            return True
        call = statement.value if isinstance(statement, ast.Expr) else None
        path = self._script.path(call.func) if isinstance(call, ast.Call) else ""
        return (
            path not in ("print", "os.makedirs", "os.mkdir")
            and (not isinstance(call, ast.Call) or last_name(call.func) != "mkdir")
            and not path.startswith(("sys.", "pprint", "tqdm"))
            and path.rpartition(".")[2] not in _LEVELS
        )
