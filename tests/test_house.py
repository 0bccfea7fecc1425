"""The house keeps its shape: dependencies point one way, public names are few, nothing heavy is imported early."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rueda

SOURCE = Path(rueda.__file__).parent

# Which folder may import from which. Missing here means: from nowhere.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "lazy": set(),
    "files": {"errors"},
    "records": {"errors", "files"},
    "terminal": {"errors", "records"},
    "world": {"errors", "records", "files"},
    "data": {"errors", "records", "world"},
    "optim": {"errors", "records", "world"},
    "nn": {"errors", "records", "world"},
    "tasks": {"errors", "files", "records", "world", "data", "nn"},
    "train": {"errors", "files", "records", "terminal", "world", "data", "optim", "nn", "tasks"},
    "study": {"errors", "files", "records", "terminal", "world", "data", "optim", "nn", "tasks", "train"},
    "measure": {"errors", "files", "records", "terminal", "world", "data", "optim", "nn", "tasks", "train"},
    "examine": {"errors", "files", "records", "terminal", "world", "data", "nn", "tasks", "train"},
    "plan": {"errors", "records"},
    "report": {"errors", "files", "records", "terminal"},
    "hvd": {"errors", "world", "optim", "nn"},
    "cli": {
        *("errors", "files", "records", "terminal", "world", "data", "tasks", "train", "study", "measure", "plan"),
        *("examine", "report", "hvd", "__init__"),
    },
    "__main__": {"cli"},
    "__init__": {"errors", "records", "world", "data", "tasks", "train"},
}


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "rueda":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {_home(alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("rueda.")}
    return found


def _home(name: str) -> str:
    return name if (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").exists() else "__init__"


def test_dependencies_point_one_way() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 30
    for file in files:
        folder = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        assert folder in ALLOWED, f"{folder} has no place in the house"
        wrong = imports(file) - ALLOWED[folder] - {folder, "lazy"}
        assert not wrong, f"{file.relative_to(SOURCE)} must not import rueda.{min(wrong)}"


def test_public_names() -> None:
    assert sorted(rueda.__all__) == [
        "Arrays", "Loader", "Recipe", "RuedaError", "Run", "Task", "World", "__version__", "finish", "fit", "init",
        "load_task",
    ]  # fmt: skip
    for name in rueda.__all__:
        assert getattr(rueda, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'wheel'"):
        rueda.wheel  # noqa: B018


@pytest.mark.parametrize(
    "code",
    ["import rueda", "import rueda.records, rueda.cli.app", "import rueda.world.launch", "import rueda.hvd.launching"],
)
def test_nothing_heavy_is_imported_early(code: str) -> None:
    check = f"{code}; import sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


def test_the_world_knows_nothing_of_horovod() -> None:
    for file in sorted((SOURCE / "world").rglob("*.py")):
        assert not re.search("horovod|hvd", file.read_text(), re.IGNORECASE), f"{file}: hand it over from rueda.hvd"


def test_no_module_hides_the_standard_library() -> None:
    top = {file.stem for file in SOURCE.iterdir() if file.suffix == ".py" or file.is_dir()}
    assert not top & {"inspect", "profile", "types", "logging"}


def test_the_version_is_one() -> None:
    text = (SOURCE.parents[1] / "pyproject.toml").read_text()
    assert f'version = "{rueda.__version__}"' in text
