"""The documents are true: commands and code of the README run, the reference page is that of --help, links work."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import house
from commandline import rueda
from jobshere import run_jobs_here
from rueda.report.markdown import markdown_tables
from rueda.train.checkpoint import latest_checkpoint

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
RECORDS = [*RESULTS.glob("*/study.json"), *RESULTS.glob("*/curvature.json")]
README = (ROOT / "README.md").read_text()


def run(*words: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
        text=True,
        capture_output=True,
        timeout=180,
    )


def test_readme_shows_the_examples_as_they_are() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    for name in ("serial.py", "parallel.py"):
        assert (ROOT / "examples" / name).read_text() in blocks, f"README lacks examples/{name}"


def test_three_commands_scale_convert_and_check_the_serial_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text((ROOT / "examples" / "serial.py").read_text())
    block = README.partition("```\n$ rueda scale")[2].partition("```")[0]
    shown = re.split(r"^\$ (.*)\n", "$ rueda scale" + block, flags=re.MULTILINE)[1:]
    assert len(shown) == 6
    for command, expected in zip(shown[::2], shown[1::2], strict=True):
        words = command.partition(" |")[0].split()
        done = run(sys.executable, "-m", *words, cwd=tmp_path, COLUMNS="200")  # as in a pipe: not limited
        assert done.returncode == 0, done.stderr
        printed = done.stderr if "scale" in command else done.stdout
        last = printed.splitlines()[-1:] if "tail -1" in command else printed.splitlines()
        last = [line for line in last if "which they share" not in line]  # said on a machine with one core
        without_rounding = [re.sub(r"difference [\d.e-]+", "difference 1e-07", line) for line in last]
        assert without_rounding == expected.splitlines()


def test_five_lines_make_the_serial_script_parallel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "serial.py"))  # in this process, since a start with torch costs seconds
    serial = torch.load(tmp_path / "model.pt", weights_only=True)
    alone, two = [sys.executable], [sys.executable, "-m", "rueda", "run", "-np", "2"]
    for launcher in (alone, two):
        (tmp_path / str(len(launcher))).mkdir()
        done = run(*launcher, str(ROOT / "examples" / "parallel.py"), cwd=tmp_path / str(len(launcher)))
        assert done.returncode == 0, done.stderr
        found = latest_checkpoint(tmp_path / str(len(launcher)) / "saved")
        assert found is not None and found[1]["model"].keys() == serial.keys() and found[1]["place"]["step"] == 3
    old, new = ((ROOT / "examples" / name).read_text().splitlines() for name in ("serial.py", "parallel.py"))
    marked = [line for line in new if re.search(r"# \d\. ", line)]
    assert len(marked) == 5
    assert not [line for line in new if line not in old and line not in marked and not line.startswith("import rueda")]


def test_the_task_of_the_readme_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    block = next(block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "rueda.Task(" in block)
    (tmp_path / "mytask.py").write_text(block)
    monkeypatch.chdir(tmp_path)
    run_jobs_here(monkeypatch)
    status = rueda("train", "mytask.py", "--epochs", "1")
    told = capfd.readouterr().err
    assert status == 0 and "test loss" in told, told


def test_the_two_commands_are_makes_own() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in ("demo", "test"):
        assert f"make {command}" in README and f"\n{command}: .venv/installed" in makefile


def test_reference_page_is_that_of_help() -> None:
    from rueda.cli.reference import reference

    assert (ROOT / "docs" / "commands.md").read_text() == reference(), (
        "run: python -m rueda.cli.reference > docs/commands.md"
    )


def test_the_drawing_of_the_house_is_that_of_the_code() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert page == house.renewed(page), "run: python tests/house.py"


def test_the_tree_of_the_readme_has_every_folder() -> None:
    tree = README.partition("```\nsrc/rueda/\n")[2].partition("```")[0]
    shown = re.findall(r"^  (\w+)/ +\S", tree, re.MULTILINE)
    there = {file.parent.name for file in (ROOT / "src" / "rueda").glob("*/__init__.py")}
    assert sorted(shown) == sorted(there)


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy, since a build leaves folders behind."""
    import shutil

    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    done = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), cwd=source)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl"))


def test_the_wheel_works_outside_the_repository(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    assert "rueda/py.typed" in names and not any(name.startswith("tests") for name in names)
    sources = {str(file.relative_to(ROOT / "src")) for file in (ROOT / "src" / "rueda").rglob("*.py")}
    assert sources <= set(names)
    code = "import rueda; assert 'site' in rueda.__file__; from rueda.cli import main; main()"
    done = run(
        sys.executable, "-c", code, "train", "linear", "--epochs", "1", cwd=tmp_path, PYTHONPATH=str(tmp_path / "site")
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("record", RECORDS, ids=lambda file: file.parent.name)
def test_the_tables_of_the_results_are_those_of_the_records(record: Path) -> None:
    """As `rueda report FOLDER --markdown` prints them."""
    text = "".join(page.read_text() for page in sorted(RESULTS.glob("*.md")))
    tables = [block for block in markdown_tables([record.parent]).split("\n\n") if block.startswith("|")]
    assert tables
    for table in tables:
        assert table.strip() in text, f"another table than in {record.parent.name}:\n{table}"
