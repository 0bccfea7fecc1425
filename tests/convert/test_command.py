"""``rueda convert`` itself: the diff, the file written in place, warnings, mistakes; and the page of the documents."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from commandline import rueda, rueda_without_torch
from converthere import PAGE, renewed
from rueda.check.convert import convert
from scalehere import SCRIPTS


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(SCRIPTS / "mlp.py", "train.py")
    shutil.copy(SCRIPTS / "vae.py", "vae.py")


def test_the_diff_is_printed_and_torch_is_not_loaded() -> None:
    done = rueda_without_torch("convert", "train.py")
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("--- train.py\n+++ train.py\n@@ ")
    assert "+train_loader = SharedLoader(DataLoader(" in done.stdout
    assert Path("train.py").read_bytes() == (SCRIPTS / "mlp.py").read_bytes()


def test_write_changes_the_file_and_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    Path("link.py").symlink_to("train.py")
    os.chmod("train.py", 0o750)
    assert rueda("convert", "link.py", "--to", "rueda", "--write") == 0
    assert capfd.readouterr().out == "link.py was converted; start it with: rueda run -np 2 link.py\n"
    assert Path("train.py").read_bytes() == convert((SCRIPTS / "mlp.py").read_bytes(), to="rueda").after
    assert Path("link.py").is_symlink() and os.stat("train.py").st_mode & 0o777 == 0o750
    assert rueda("convert", "train.py") == 2
    assert "train.py: expected a serial script, got 'one that uses Rueda'" in capfd.readouterr().err


def test_warnings_go_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert rueda("convert", "vae.py") == 0
    told = capfd.readouterr()
    assert told.err.splitlines()[0].startswith("rueda convert: vae.py:34: this optimizer has a part of a model")
    assert told.err.count("\n") == told.out.count("# TODO(rueda): ") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.py"], "nowhere.py: expected a Python script, got 'no such file'"),
        (["."], ".: expected a Python script, got 'a folder'"),
        (["train.py", "--to", "mpi"], "--to: expected ddp or rueda or horovod, got 'mpi'"),
        (["wrong.py"], "wrong.py:1: expected Python, got"),
        (["empty.py"], "empty.py: expected a loop that trains"),
        (["/dev/zero"], "/dev/zero: expected a Python script, got 'more than 10 MB'"),
    ],
)
def test_mistakes_are_one_line(words: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path("wrong.py").write_text("def (")
    Path("empty.py").write_text("")
    assert rueda("convert", *words) == 2
    told = capfd.readouterr()
    assert told.err.count("\n") == 1 and said in told.err and not told.out


def test_the_page_shows_what_is_printed() -> None:
    page = PAGE.read_text()
    assert page == renewed(page), "run: python tests/converthere.py"
