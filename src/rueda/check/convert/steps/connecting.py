"""Connect the workers before anything else runs, and give them random numbers that are equal, then different."""

from __future__ import annotations

import ast

from rueda.check.convert.conversion import Plan, is_import_block
from rueda.check.convert.script import Function
from rueda.check.convert.styles import MEAN, SHARED, SHARES, STREAM, SUM

_SEEDS = {
    "torch": ("torch.manual_seed", "torch.manual_seed({})"),
    "random": ("random.seed", "random.seed({})"),
    "numpy": ("numpy.random.seed", "{numpy}.random.seed({})"),
}
_NO_DRAWS = ("seed", "RandomState", "default_rng", "Generator", "SeedSequence", "get_state", "set_state", "Random")


def connect(plan: Plan) -> None:
    """Insert the imports, the loader's class, the connection and the seeds."""
    _import(plan)
    body, is_guarded = _main(plan)
    lines = [*plan.style.connect]
    unseeded = [name for name in _libraries(plan) if not _is_seeded(plan, name)]
    if unseeded:
        lines.append("# The workers must make the same model and divide the data alike: they start from the same seed.")
        lines += [_seed(plan, name, "0") for name in unseeded]
    first = body[0]
    plan.edits.before(first, *lines, *([] if is_guarded else [""]))
    if plan.style.finish:
        last = _guard(plan)
        end = last.body[-1] if last is not None else None
        if end is None:
            plan.edits.at_end(*plan.style.finish)
        elif not _exits(plan, end):
            plan.edits.after(end, *plan.style.finish)
    _reseed(plan)


def _guard(plan: Plan) -> ast.If | None:
    found = [each for each in plan.script.tree.body if isinstance(each, ast.If)]
    return next((each for each in found if "__name__" in plan.script.source(each.test)), None)


def _exits(plan: Plan, statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    path = plan.script.path(call.func) if isinstance(call, ast.Call) else ""
    return path in ("sys.exit", "exit", "quit", "os._exit") or isinstance(statement, ast.Raise)


def _main(plan: Plan) -> tuple[list[ast.stmt], bool]:
    """Return the statements of ``if __name__ == "__main__"``, or those of the script after its first definitions.

    The latter also if something before the ``if`` needs to know the rank.
    """
    guard = _guard(plan)
    kinds = (ast.Import, ast.ImportFrom, Function, ast.ClassDef)
    body = plan.script.tree.body
    head = 0 if plan.head is None else plan.head.lineno
    rest = [
        each
        for each in body
        if each.lineno > head and not isinstance(each, kinds) and not _is_text(each) and not is_import_block(each)
    ]
    if guard is None:
        return rest, False
    placed = [*plan.writes.statements, *plan.writes.opened, *plan.writes.downloads, *plan.writes.summary_writers]
    outside = [
        each
        for each in placed
        if plan.script.function(each) is plan.script.tree and guard not in plan.script.around(each)
    ]
    return (rest, False) if outside else (guard.body, True)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _import(plan: Plan) -> None:
    script, style = plan.script, plan.style
    body = script.tree.body
    head = body[: body.index(plan.head) + 1] if plan.head is not None else []  # what is imported later is not there yet
    have = {line.strip() for each in head if isinstance(each, ast.Import | ast.ImportFrom)
            for line in [script.source(each)]}  # fmt: skip
    wanted = [line for line in style.imports if line not in have]
    known = {alias.asname or alias.name.partition(".")[0] for each in head if isinstance(each, ast.Import)
             for alias in each.names}  # fmt: skip
    if plan.uses_files and "import os" not in wanted:
        wanted.insert(0, "import os")
    wanted = [line for line in wanted if line.removeprefix("import ") not in known]
    lines = wanted and [f"{wanted[0]}  # {_import_why(plan)}", *wanted[1:]]
    if not plan.loaders.shared:
        lines = [line for line in lines if "SharedLoader" not in line]
    helper = _helper(plan)
    if helper:
        lines += ["", "", *helper.rstrip("\n").split("\n")]
        following = body[body.index(place) + 1 :] if (place := plan.head) is not None else []
        lines += [""] if following and not isinstance(following[0], Function | ast.ClassDef) else []
    place = plan.head
    if place is None:
        plan.edits.before(body[0], *lines, "")
    else:
        plan.edits.after(place, *lines)


def _import_why(plan: Plan) -> str:
    return {"ddp": "The workers find and answer each other.", "rueda": "The workers, and their shares of the data.",
            "horovod": "The workers."}[plan.style.name]  # fmt: skip


def _helper(plan: Plan) -> str:
    """Return the class that shares out batches, with only what the script needs of it."""
    style = plan.style
    if not style.all_reduce or not plan.loaders.shared:
        return ""
    is_stream = any(plan.loaders.is_stream(each.makes) for each in plan.loaders.shared if each.makes is not None)
    words = {"rank": style.rank, "size": style.size, "broadcast": style.broadcast, "all_reduce": style.all_reduce}
    text = plan.edits.text()
    has_mean, has_sum = "SharedLoader.mean(" in text, "SharedLoader.sum(" in text
    parts = [STREAM.format(**words) if is_stream else SHARED]
    parts += [SUM.format(**words)] if has_sum or has_mean else []
    parts += [MEAN.format(**words)] if has_mean else []
    return "".join(parts) + ("" if is_stream else "\n\n" + SHARES.format(**words))


# Random numbers.


def _libraries(plan: Plan) -> list[str]:
    """Return the libraries whose random numbers the script draws."""
    drawn = {plan.script.path(call.func) for call in plan.script.calls}
    found = ["torch"]
    for name, prefix in (("random", "random."), ("numpy", "numpy.random.")):
        if any(path.startswith(prefix) and path.split(".")[-1] not in _NO_DRAWS for path in drawn):
            found.append(name)
    return found


def _is_seeded(plan: Plan, library: str) -> bool:
    """Return whether the script seeds a library's generator on all its ways."""
    for call in plan.script.calls_of(_SEEDS[library][0]):
        around = [each for each in plan.script.around(call) if isinstance(each, ast.If | ast.IfExp)]
        if all(each is _guard(plan) for each in around):
            return True
    return False


def _seed(plan: Plan, library: str, value: str) -> str:
    numpy = next((name for name, path in plan.script.imports.items() if path == "numpy"), "numpy")
    return _SEEDS[library][1].format(value, numpy=numpy)


def _reseed(plan: Plan) -> None:
    """From the first training loop on, dropout and augmentation differ between the workers."""
    libraries = [name for name in _libraries(plan) if name != "torch" or plan.style.seeds_torch]
    if not libraries:
        return
    rank = plan.style.rank
    values = {"torch": f"torch.initial_seed() + {rank}", "random": f"torch.initial_seed() + {rank}",
              "numpy": f"(torch.initial_seed() + {rank}) % 2**32"}  # fmt: skip
    done: set[ast.AST] = set()
    for loop in plan.flow.epoch_loops:
        function = plan.script.function(loop)
        if function in done or _runs_in_a_loop(plan, function):
            continue
        done.add(function)
        plan.edits.before(
            loop,
            "# Dropout, noise and augmentation differ between the workers; rank 0 keeps those of the serial script.",
            f"if {rank} > 0:",
            *(f"    {_seed(plan, name, values[name])}" for name in reversed(libraries)),
        )


def _runs_in_a_loop(plan: Plan, function: ast.AST) -> bool:
    """Return whether a function is called in a loop that trains, by itself or through others."""
    seen: set[ast.AST] = set()
    while isinstance(function, Function) and function not in seen:
        seen.add(function)
        calls = plan.flow.calls_to(function)
        if any(each in plan.flow.training_loops for call in calls for each in plan.script.around(call)):
            return True
        function = plan.script.function(calls[0]) if calls else plan.script.tree
    return False
