"""The site is true: its code runs, its commands are understood, what it names exists; a broken link is found."""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import console
import house
from jobshere import run_jobs_here
from rueda.errors import MissingExtra
from rueda.measure.request import QUICK

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {str(file.relative_to(DOCS)): file.read_text() for file in sorted(DOCS.rglob("*.md"))}

NOT_RUN = {
    "data.md": "needs CIFAR-10; tests/data runs loaders on data made there",
    "horovod.md": "starts two processes; tests/hvd does the same",
    "jax.md": "it needs JAX; tests/frameworks/test_jax_optimizer.py runs it on 2 workers",
    "keras.md": "a process has one Keras backend; tests/frameworks/test_toolbox_page.py runs it on each",
    "launch.md": "needs hosts server1 and server2",
    "noise-scale.md": "needs a process group; tests/optim does the same on workers",
    "optimizers.md": "needs a process group and has formulas for values; tests/optim does the same",
    "report.md": "needs the folder of a study and a browser",
}
"""pages whose Python blocks are not run, and why; their imports are tried all the same"""
NOT_RUN_BLOCKS = {
    ("measure.md", "measure("): "times steps for half a minute; tests/measure does the same",
    ("measure.md", "ExchangeMeter("): "needs a process group; tests/optim does the same on workers",
}
LANGUAGES = {
    "": "shell commands, drawings and file contents; the lines that begin with `rueda` are parsed",
    "python": "run, unless the tables above say why not",
    "console": "run, and compared with what the page shows",
    "toml": "read by tests/plan and tests/records",
    "diff": "compared with examples/trainings by tests/test_trainings.py",
    "bash": "shell commands; the lines that begin with `rueda` are parsed",
}
_DIRECTIVES = ("{toctree}", "{include}", "{eval-rst}", "{sequence}", "{import-graph}", "{recipe-fields}",
    "{named-recipes}", "{format-number}", "{record-formats}", "{metrics-rows}", "{package}",
    "{python-api}", "{literalinclude}")  # fmt: skip


def python_blocks() -> Iterator[tuple[str, console.Block]]:
    for page, text in PAGES.items():
        for block in console.blocks(text):
            if block.language == "python":
                yield page, block


def reason_not_to_run(page: str, block: console.Block) -> str | None:
    for (name, mark), reason in NOT_RUN_BLOCKS.items():
        if page == name and mark in block.text:
            return reason
    return NOT_RUN.get(page)


def test_every_block_has_a_language_that_the_tests_know() -> None:
    for page, text in PAGES.items():
        for block in console.blocks(text):
            known = block.language in LANGUAGES or block.language.startswith(_DIRECTIVES)
            assert known, f"docs/{page}, line {block.line}: {block.language}"


def test_every_reason_is_still_needed() -> None:
    used = {(page, reason_not_to_run(page, block)) for page, block in python_blocks()}
    for page, reason in [*NOT_RUN.items(), *((page, reason) for (page, _), reason in NOT_RUN_BLOCKS.items())]:
        assert (page, reason) in used, f"docs/{page} has no such block any more: {reason}"


# Get started: one session from the first line to the last.


@pytest.mark.slow
def test_get_started_prints_what_the_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    run_jobs_here(monkeypatch)  # trainings of the study too: ten starts with torch cost half a minute
    brief = replace(QUICK, steps=0.5, communication=0.2, together=0.5, noise=0.5)  # its figures are not compared below
    monkeypatch.setattr("rueda.measure.request.QUICK", brief)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with console.session_folder():
        page = console.renew(PAGES["get-started.md"])
        assert Path("report.html").stat().st_size > 100_000
    shown, printed = (
        [pair for block in console.blocks(text) if block.language == "console" for pair in block.commands()]
        for text in (PAGES["get-started.md"], page)
    )
    for (command, before), (_, now) in zip(shown, printed, strict=True):
        if command.split()[1] not in ("plan", "measure"):  # what these two say in words depends on the machine's times
            assert console.shape(now) == console.shape(before), (
                f"{command}: run python tests/console.py docs/get-started.md"
            )
    right = [int(number) for number in re.findall(r"(\d+) of 1000 test points are right", page)]
    assert len(right) == 2 and min(right) > 930
    table = page.partition("rueda study")[2]
    one, naive, remedy = (_accuracy(table, row) for row in ("one-worker", "naive", "batch-norm"))
    assert naive < one - 3 and remedy > one - 1.5, "the text below the study says that batch norm keeps the accuracy"


def _accuracy(table: str, row: str) -> float:
    """Return the test accuracy of a row of the study's table, the second column with a spread."""
    line = next(line for line in table.splitlines() if re.match(rf"\s*(?:\d+\s+)?{row}\s+\d", line))
    return float(re.findall(r"(\d+\.\d) ±", line)[1])


# How-to pages and guides: the blocks of a page in their order, in one process.


@pytest.mark.parametrize(
    ("page", "file"),
    [
        pytest.param(page, block.file, id=f"{page}:{block.line}")
        for page, block in python_blocks()
        if page.startswith("how-to/")
    ],
)
def test_scripts_of_the_how_to_pages_run(
    page: str, file: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from commandline import rueda

    assert file is not None, f"docs/{page}: a script needs a name: <!-- file: NAME -->"
    monkeypatch.chdir(tmp_path)
    for other, block in python_blocks():  # the commands of a page use all its scripts
        if other == page and block.file is not None:
            Path(block.file).write_text(block.text)
    runpy.run_path(file, run_name="__main__")
    for block in console.blocks(PAGES[page]):
        for command, _ in block.commands() if block.language == "console" else ():
            assert rueda(*command.split()[1:]) == 0, command


@pytest.mark.parametrize(
    ("page", "text"),
    [
        pytest.param(page, block.text, id=f"{page}:{block.line}")
        for page, block in python_blocks()
        if "/" not in page and page != "get-started.md" and reason_not_to_run(page, block) is None
    ],
)
def test_code_of_the_guides_runs(page: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = stand_ins()
    if text.startswith(">>>"):
        flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
        example = doctest.DocTestParser().get_doctest(text, names, page, page, 0)
        assert doctest.DocTestRunner(optionflags=flags).run(example).failed == 0
    else:
        exec(compile(text, page, "exec"), names)


def stand_ins() -> dict[str, Any]:
    """Give what the guides take for granted: a small model with its data, loader and optimizer."""
    import torch
    from torch import nn
    from torch.nn import functional

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    dataset = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,)))
    loader = torch.utils.data.DataLoader(dataset, batch_size=16)
    return {
        "F": functional, "Path": Path, "torch": torch, "nn": nn, "model": model, "dataset": dataset, "loader": loader,
        "train_loader": loader, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("page", "text"),
    [
        pytest.param(page, block.text, id=f"{page}:{block.line}")
        for page, block in python_blocks()
        if reason_not_to_run(page, block) is not None
    ],
)
def test_imports_of_code_that_is_not_run(page: str, text: str) -> None:
    for line in re.findall(r"^\s*((?:from|import) (?:rueda|torch)\b.*)", text, re.MULTILINE):
        for node in ast.walk(ast.parse(line)):
            if isinstance(node, ast.ImportFrom):
                assert node.module
                home = importlib.import_module(node.module)
                assert not [alias.name for alias in node.names if not hasattr(home, alias.name)], line
            elif isinstance(node, ast.Import):
                with contextlib.suppress(MissingExtra):  # its page says what to install, and so does this error
                    importlib.import_module(node.names[0].name)


# Commands.


def commands() -> Iterator[tuple[str, list[str]]]:
    """List the lines of all pages that begin with ``rueda``, with their words; `\\` joins lines, comments go."""
    for page, text in PAGES.items():
        if page in ("log.md", "commands.md") or page.startswith("results/"):
            continue
        for block in console.blocks(text):
            if block.language in ("", "bash", "console"):
                for line in block.text.replace("\\\n", " ").splitlines():
                    words = re.split(r"  +(?=[a-z])|[|>]|&&", line.removeprefix("$ "))[0]
                    if words.startswith("rueda ") and "<" not in words and ": " not in words:
                        yield page, shlex.split(words, comments=True)


@pytest.mark.parametrize("words", [pytest.param(words, id=f"{page}: {' '.join(words)}") for page, words in commands()])
def test_commands_of_the_pages_are_understood(words: list[str]) -> None:
    import typer

    from rueda.cli.app import app

    command, rest = typer.main.get_command(app), words[1:]
    while rest and hasattr(command, "commands") and rest[0] in command.commands:
        command, rest = command.commands[rest[0]], rest[1:]
    assert not hasattr(command, "commands"), f"no command: {' '.join(words)}"
    context = command.make_context(" ".join(words), list(rest), resilient_parsing=False)
    context.close()


# The pages about the inside name files that exist.


def test_files_that_the_pages_name_exist() -> None:
    for page, text in PAGES.items():
        if page.startswith("inside/"):
            for name in re.findall(r"`(?:src/rueda/)?([\w/]+\.py)`", text):
                assert (ROOT / "src" / "rueda" / name).is_file(), f"docs/{page} names {name}"


def test_every_page_of_the_site_is_in_a_menu() -> None:
    menus = "".join(re.findall(r"```\{toctree\}.*?```", "".join(PAGES.values()), re.DOTALL))
    for page in PAGES:
        assert page == "index.md" or re.search(rf"^(?:.*[/<])?{Path(page).stem}>?$", menus, re.MULTILINE), page


# What the site adds to Sphinx.


@pytest.fixture
def extension(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("sphinx", reason="the site is built with Sphinx: pip install 'rueda[docs]'")
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("extension")


def test_broken_links_and_foreign_hosts_are_found(extension: Any, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<a href="other.html#here">x</a><a href="other.html#there">x</a><a href="gone.html">x</a>'
        '<a href="https://example.com/">x</a><script src="https://example.com/x.js"></script>'
        '<img src="//example.com/x">'
    )
    (tmp_path / "other.html").write_text('<h1 id="here">x</h1><a href="#nowhere">x</a><a href="index.html">x</a>')
    assert extension.links.site_problems(tmp_path) == [
        "index.html: links to other.html#there, which has no such place",
        "index.html: links to gone.html, which does not exist",
        "index.html: <script src> loads https://example.com/x.js from elsewhere",
        "index.html: <img src> loads //example.com/x from elsewhere",
        "other.html: links to #nowhere, which has no such place",
    ]


@pytest.mark.parametrize("module", ["docstrings", "from_code", "lab_pages"])
def test_examples_of_the_extension(extension: Any, module: str) -> None:
    assert doctest.testmod(getattr(extension, module), optionflags=doctest.ELLIPSIS).failed == 0


def test_pages_from_the_code_name_every_field_and_record(extension: Any) -> None:
    from rueda.records.recipe.recipe import field_names

    fields = extension.from_code.recipe_fields()
    assert all(f"| `{name} = " in fields for name in field_names())
    formats = extension.from_code.record_formats()
    for file in ("profile.json", "plan.json", "study.json", "curvature.json", "landscape.json"):
        assert f"## {file}" in formats


def test_the_import_graph_draws_every_folder_below_its_users(extension: Any) -> None:
    svg = extension.drawings.import_graph(house.folders())
    places = {name: int(y) for y, name in re.findall(r'<text x="\d+" y="(\d+)">(\w+)</text>', svg)}
    assert places.keys() == house.folders().keys()
    assert all(places[user] < places[used] for user, needs in house.folders().items() for used in needs)


def test_a_sequence_needs_known_participants(extension: Any) -> None:
    assert "hello" in extension.drawings.sequence(["a | b", "a -> b: hello", "b: thinks", "== part two =="])
    with pytest.raises(ValueError, match="expected 'A -> B: text'"):
        extension.drawings.sequence(["a | b", "what is this"])
