"""The house keeps its shape: dependencies point one way, public names are few, nothing heavy is imported early."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import house
import rueda

SOURCE = Path(rueda.__file__).parent

# Which folder may depend on which, by import or by a string that names a module; missing here means: on none.
# Each entry is used by a file or more: what is no longer used is no longer allowed.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "lazy": set(),
    "files": {"errors"},
    "records": {"errors", "files", "world"},
    "terminal": {"records"},
    "world": {"errors", "files", "lazy"},
    "data": {"errors", "world"},
    "optim": {"errors", "lazy", "records", "world"},
    "nn": {"errors", "files", "lazy", "world"},
    "keras": {"errors", "nn", "optim"},
    "integrations": {"data", "errors", "lazy", "nn", "optim", "records", "train", "world"},
    "jobs": {"errors", "files", "lazy", "records", "world"},
    "tasks": {"errors", "files", "lazy", "records", "world", "data"},
    "train": {"errors", "files", "jobs", "lazy", "records", "terminal", "world", "data", "optim", "nn", "tasks"},
    "study": {
        *("errors", "files", "jobs", "lazy", "records", "terminal", "world", "data", "optim", "tasks", "train"),
        *("measure", "plan"),
    },
    "measure": {"data", "errors", "jobs", "lazy", "records", "terminal", "world", "optim", "tasks", "train"},
    "examine": {"errors", "files", "lazy", "records", "terminal", "world", "data", "nn", "optim", "tasks", "train"},
    "plan": {"errors", "files", "optim", "records", "terminal"},
    "report": {"errors", "files", "optim", "records", "terminal"},
    "check": {"data", "errors", "files", "nn", "optim", "records", "terminal", "world"},
    "labs": {
        *(
            "check",
            "data",
            "errors",
            "examine",
            "files",
            "hvd",
            "jobs",
            "measure",
            "optim",
            "plan",
            "records",
            "report",
        ),
        *("study", "tasks", "terminal", "train", "world"),
    },
    "hvd": {"errors", "lazy", "world", "nn", "optim"},
    "assess": {"check", "data", "errors", "files", "jobs", "records", "report", "tasks", "terminal", "world"},
    "cli": {
        *("errors", "files", "records", "terminal", "world", "tasks", "train", "study", "measure", "plan", "examine"),
        *("report", "hvd", "jobs", "check", "assess", "labs", "__init__"),
    },
    "__init__": {"errors", "hvd", "lazy", "records", "world", "data", "nn", "optim", "tasks", "train"},
}


def test_dependencies_point_one_way() -> None:
    assert len(house.modules()) > 30
    for module, tree in house.trees():
        folder = house.folder_of(module)
        assert folder in ALLOWED, f"{folder} has no place in the house"
        for way in (house.imported, house.named_in_strings):
            needed = {house.folder_of(name): name for name in sorted(way(tree, house.modules()))}
            wrong = needed.keys() - ALLOWED[folder] - {folder}
            assert not wrong, f"{module} must not depend on {needed[min(wrong)]} ({way.__name__})"


@pytest.mark.parametrize("folder", ALLOWED)
def test_what_nobody_uses_is_not_allowed(folder: str) -> None:
    unused = ALLOWED[folder] - house.folders().get(folder, set())
    assert not unused, f"no file in {folder} depends on {min(unused)}: take it out of ALLOWED"


def test_no_modules_import_each_other() -> None:
    known = house.modules()
    graph = {module: house.imported_on_loading(tree, known) for module, tree in house.trees()}
    assert len(graph["rueda.train.loop"]) > 5
    assert house.cycles(graph) == []


def test_no_folders_depend_on_each_other() -> None:
    assert house.cycles(house.folders()) == []


HIDDEN = {
    "import rueda.b.c": ({"rueda.b.c"}, {"rueda.b.c"}, set()),
    "from rueda.b import c, name": ({"rueda.b.c", "rueda.b"}, {"rueda.b.c", "rueda.b"}, set()),
    "from rueda import b, finish": ({"rueda.b", "rueda"}, {"rueda.b", "rueda"}, set()),
    "def f():\n    from rueda.b import c": ({"rueda.b.c"}, set(), set()),
    "if TYPE_CHECKING:\n    import rueda.b\nelse:\n    import rueda.d": ({"rueda.b", "rueda.d"}, {"rueda.d"}, set()),
    "try:\n    import rueda.b\nexcept ImportError:\n    pass": ({"rueda.b"}, {"rueda.b"}, set()),
    "run([python, '-m', 'rueda.b.c', x])": (set(), set(), {"rueda.b.c"}),
    "run((python, '-m', 'rueda', 'train'))": (set(), set(), {"rueda.__main__"}),
    "start('rueda.b.c:train')": (set(), set(), {"rueda.b.c"}),
    "import_module(f'rueda.b.{name}')": (set(), set(), {"rueda.b"}),
    "CODE = 'import sys; from rueda.d import x'": (set(), set(), {"rueda.d"}),
    "'The twin of rueda.b.c.'\ndef f():\n    'See rueda.d.'": (set(), set(), set()),
    "say('call rueda.init() first')": (set(), set(), set()),
    "import numpy, ruedas.b": (set(), set(), set()),
}


@pytest.mark.parametrize("code", HIDDEN)
def test_a_dependency_is_found_wherever_it_hides(code: str) -> None:
    tree, known = ast.parse(code), {"rueda", "rueda.__main__", "rueda.b", "rueda.b.c", "rueda.d"}
    found = (
        house.imported(tree, known),
        house.imported_on_loading(tree, known),
        house.named_in_strings(tree, known),
    )
    assert found == HIDDEN[code]


@pytest.mark.parametrize("code", ["from . import b", "from .b import c", "def f():\n    from ..b import c"])
def test_a_relative_import_is_refused(code: str) -> None:
    with pytest.raises(ValueError, match="got a relative one"):
        house.imported(ast.parse(code), {"rueda.b"})


def test_public_names() -> None:
    assert sorted(rueda.__all__) == [
        "Arrays", "Checkpoint", "Loader", "Recipe", "RuedaError", "Run", "Task", "World", "__version__", "finish",
        "fit", "gather", "hvd", "init", "load_task",
    ]  # fmt: skip
    for name in rueda.__all__:
        assert getattr(rueda, name) is not None
    for package in ("data", "nn", "optim", "tasks"):
        assert getattr(rueda, package).__name__ == f"rueda.{package}"
    with pytest.raises(AttributeError, match="no attribute 'wheel'"):
        rueda.wheel  # noqa: B018


@pytest.mark.parametrize(
    "code",
    [
        "import rueda; rueda.hvd.run",
        "import rueda.records, rueda.cli.app",
        "import rueda.world.launch",
        "import rueda.hvd.launching",
        "import rueda.optim.checks, rueda.optim.schedules, rueda.nn.ghost_sizes",  # which rueda.keras needs
    ],
)
def test_nothing_heavy_is_imported_early(code: str) -> None:
    check = f"{code}; import sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


STARTERS = {
    "jobs/": "runs functions of this package",
    "world/launch/": "the launcher runs any program",
    "hvd/runner/launch_plan.py": "Horovod's API: names the interpreter of other hosts, runs the host discovery script",
    "records/environment.py": "asks git for the commit",
    "world/instruction_sets.py": "tries instructions that may end the process, before anything else can run",
    "check/scale/verification.py": "runs the user's script once more, as one worker",
    "assess/confinement.py": "asks, as another user, whether that one can read Python",
    "assess/seal.py": "names what a script must not call",
    "report/png.py": "asks a browser for a picture",
    "labs/opening.py": "starts marimo, which serves a lab",
    "files/kernels.py": "runs the C compiler",
    "train/loaders.py": "asks whether torch's DataLoader may start processes that read a data set",
}
"""what may start a process, and why"""


SIGNS = re.compile(
    r"\b((import|from) (torch\.)?(subprocess|multiprocessing)\b(?!\.connection)|sys\.executable|ProcessPoolExecutor"
    r"|from torch import .*\bmultiprocessing|torch\.multiprocessing|os\.(fork|exec|spawn|posix_spawn|popen|system)"
    r"|from os import .*\b(fork|exec|spawn|posix_spawn|popen|system)|create_subprocess_(exec|shell)"
    r"|subprocess_(exec|shell)\()"
)
"""of code that starts a process; multiprocessing.connection is about sockets alone"""


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess", "from subprocess import run", "import multiprocessing as mp", "os.fork()",
        "from multiprocessing import Process", "import torch.multiprocessing",
        "from torch.multiprocessing import spawn", "from torch import multiprocessing",
        "from torch import nn, multiprocessing", "from concurrent.futures import ProcessPoolExecutor",
        "os.posix_spawn(path, words, {})", "os.popen('ls')", "os.system('ls')", "from os import path, system",
        "asyncio.create_subprocess_exec('ls')", "loop.subprocess_shell(protocol, 'ls')",
    ],
)  # fmt: skip
def test_a_started_process_is_found(code: str) -> None:
    assert SIGNS.search(code)


def test_processes_are_started_in_few_places() -> None:
    found = {file.relative_to(SOURCE).as_posix() for file in SOURCE.rglob("*.py") if SIGNS.search(file.read_text())}
    strangers = {file for file in found if not file.startswith(tuple(STARTERS))}
    assert not strangers, f"{min(strangers)} starts a process: use rueda.jobs"
    assert all(any(file.startswith(place) for file in found) for place in STARTERS)


ADVERTISED = {
    "world/cores.py": "limits it by affinity and quotas, or compares it with the affinity",
    "world/device.py": "divides the machine among workers that each have an affinity of their own",
    "world/numa.py": "asks whether the affinity is that of the whole machine",
    "records/environment.py": "describes the machine, and beside it what was usable",
}
"""what may ask for the cores that the machine shows, of which a container may use fewer, and why"""


def test_others_ask_for_the_usable_cores() -> None:
    found = {file.relative_to(SOURCE).as_posix() for file in SOURCE.rglob("*.py") if "cpu_count" in file.read_text()}
    assert found == ADVERTISED.keys(), "use rueda.world.cores.usable_cores"


def without_docstrings(file: Path) -> ast.Module:
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            texts = [part for part in node.body if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)]
            node.body = [part for part in node.body if part not in texts] or [ast.Pass()]
    return tree


def test_exit_statuses_of_signals_are_decoded_in_one_place() -> None:
    sign = re.compile(r"\b128 [-+] (-?status|signal|number)|(== |leave\(|_exit\(|return )1(30|37|41|43)\b")
    assert sign.search("return 128 - status") and sign.search("leave(130 if interrupted else 1)")
    texts = {
        file.relative_to(SOURCE).as_posix(): ast.unparse(without_docstrings(file)) for file in SOURCE.rglob("*.py")
    }
    assert {name for name, text in texts.items() if sign.search(text)} == {"world/signals.py"}


def test_the_world_knows_nothing_of_horovod() -> None:
    for file in sorted((SOURCE / "world").rglob("*.py")):
        assert not re.search("horovod|hvd", file.read_text(), re.IGNORECASE), f"{file}: hand it over from rueda.hvd"


def test_no_module_hides_the_standard_library() -> None:
    top = {file.stem for file in SOURCE.iterdir() if file.suffix == ".py" or file.is_dir()}
    assert not top & {"inspect", "profile", "types", "logging"}


def test_the_version_is_one() -> None:
    text = (SOURCE.parents[1] / "pyproject.toml").read_text()
    assert f'version = "{rueda.__version__}"' in text


# One step: what trains, studies and measures calls Training.step.


def updates_in(code: str) -> list[str]:
    """List what makes updates: `update` of an updater, called or passed on, and `step` of an optimizer or a scaler."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            by_keyword = node.func.attr == "update" and {"rate"} & {keyword.arg for keyword in node.keywords}
            found += [ast.unparse(node.func)] if by_keyword else []
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value).rsplit(".", 1)[-1].strip("_").lower()
            is_update = node.attr == "update" and owner.endswith("updater")
            is_step = node.attr == "step" and owner.endswith(("optimizer", "scaler"))
            found += [ast.unparse(node)] if is_update or is_step else []
    return sorted(set(found))


COPIES = [
    "training.updater.update(*batch, rate=1e-6, step=place.step)",
    "updater.update(*batch, rate=rate, step=step, measure=True)",
    "made.update(*batch, rate=0.1, step=0)",
    "update = self.updater.update",
    "self._optimizer.step()",
    "scaler.step(optimizer)",
]


@pytest.mark.parametrize("code", COPIES)
def test_a_copy_of_the_step_is_found(code: str) -> None:
    assert len(updates_in(code)) == 1
    assert not updates_in("bar.update(task, completed=1); found.update(part); training.step(rate=1e-6)")


def test_updates_are_made_in_one_place() -> None:
    others = {"optim", "hvd", "nn"}  # optimizers that wrap others, and the Horovod front
    found = {
        str(file.relative_to(SOURCE)): updates
        for file in sorted(SOURCE.rglob("*.py"))
        if file.relative_to(SOURCE).parts[0] not in others and (updates := updates_in(file.read_text()))
    }
    timed = found.pop("labs/lab_2/iteration.py")  # the steps of an iteration one by one, each with its time
    assert timed == ["optimizer.step"]
    of_virtual_workers = found.pop("train/local_rehearsal.py")  # the same update, of each virtual worker
    assert of_virtual_workers == ["super().update"]
    assert found == {"train/training.py": ["updater.update"], "train/update.py": ["self.scaler.step"]}
