"""What bash, zsh and fish complete, through typer's own protocol, and really in a bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from commandline import rueda
from rueda.records.recipe.named import NAMED
from rueda.records.recipe.recipe import describe_fields
from rueda.tasks.naming import BUILTIN_TASKS

SHELLS = ("bash", "zsh", "fish")
SETTABLE = [name for name, _, _ in describe_fields() if name != "model"]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("runs/one/recipe.toml", "runs/table/study.json", "runs/empty/x", "kept/two/recipe.toml", "mine.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)


def complete(
    line: str, shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[list[str], str]:
    """Return the candidates for the end of a line, and all that was printed."""
    words = line.split(" ")
    monkeypatch.setenv("_RUEDA_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", "\n".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    assert rueda() == 0
    shown = capsys.readouterr()
    assert not shown.err
    lines = shown.out.strip().splitlines()
    if shell == "zsh":
        lines = [line.partition("((")[2] or line for line in lines]
        return [] if lines == ["_files"] else [line.split('"')[1] for line in lines], shown.out
    return [line.partition("\t")[0] for line in lines], shown.out


CASES = {
    "commands": ("rueda st", ["study", "steps-to-target"]),
    "commands of a group": ("rueda recipe s", ["show"]),
    "options": ("rueda train --re", ["--recipe", "--rehearse", "--resume", "--resume-from", "--restarts"]),
    "tasks": ("rueda train ", [*BUILTIN_TASKS, "mine.py"]),
    "a task that was begun": ("rueda study glyphs-c", ["glyphs-cnn"]),
    "a task file": ("rueda measure mi", ["mine.py"]),
    "named recipes": ("rueda recipe show la", ["lars", "larc", "lamb"]),
    "all rows": ("rueda study glyphs-cnn --rows ", [*NAMED]),
    "a row after a comma": ("rueda study glyphs-cnn --rows naive,ada", ["naive,adascale"]),
    "a row after a plus": ("rueda study glyphs-cnn --rows naive,batch-norm+lam", ["naive,batch-norm+lamb"]),
    "fields of a recipe": ("rueda train linear --set opt", ["optimizer="]),
    "all fields of a recipe": ("rueda train linear --set ", [f"{name}=" for name in SETTABLE]),
    "runs and studies": ("rueda examine ", ["runs/one", "runs/table"]),
    "runs elsewhere": ("rueda report kept/", ["kept/two"]),
    "a second path": ("rueda report runs/one ru", ["runs/one", "runs/table"]),
    "a run": ("rueda plan --from-run runs/o", ["runs/one"]),
    "clusters": ("rueda plan --cluster dgx-h", ["dgx-h100"]),
    "scripts": ("rueda convert mi", ["mine.py"]),
    "what makes a script parallel": ("rueda convert mine.py --to h", ["horovod"]),
    "data sets": ("rueda data get c", ["cifar-10"]),
    "files are the shell's": ("rueda train --recipe re", []),
    "a former name says nothing": ("rueda study --throughput glyphs-c", ["glyphs-cnn"]),
}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(("line", "expected"), CASES.values(), ids=CASES)
def test_completes(
    line: str, expected: list[str], shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complete(line, shell, monkeypatch, capsys)[0] == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_descriptions_are_shown_and_not_cut(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = complete("rueda ", shell, monkeypatch, capsys)[1]
    assert "Write one HTML page about runs and studies." in printed and "..." not in printed
    assert NAMED["naive"].summary in complete("rueda recipe show na", shell, monkeypatch, capsys)[1]


def test_data_sets_that_are_completed_are_those_that_are_published() -> None:
    from rueda.cli.data import _NAMES
    from rueda.tasks.datasets import PUBLISHED

    assert [*PUBLISHED] == _NAMES


INSTALLED = {
    "bash": ".bash_completions/rueda.sh",
    "zsh": ".zfunc/_rueda",
    "fish": ".config/fish/completions/rueda.fish",
}


@pytest.mark.parametrize("shell", SHELLS)
def test_one_command_installs(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("shellingham.detect_shell", lambda: (shell, f"/bin/{shell}"))
    assert rueda("--install-completion") == 0
    assert f"{shell} completion installed in {tmp_path / INSTALLED[shell]}" in capsys.readouterr().out
    assert f"complete_{shell}" in (tmp_path / INSTALLED[shell]).read_text()


def test_in_a_real_bash_without_torch(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    command = tmp_path / "bin" / "rueda"
    command.parent.mkdir()
    watch = "import sys; from rueda.cli import main; sys.argv[0] = 'rueda'; sys.modules['torch'] = None; main()"
    command.write_text(f"#!{sys.executable}\n{watch}\n")
    command.chmod(0o755)
    script = """
        rueda --install-completion >installed && source ~/.bashrc
        COMP_WORDS=(rueda study glyphs-cnn --rows naive,batch-norm+lam) COMP_CWORD=4
        _rueda_completion rueda && echo "${COMPREPLY[@]}"
        complete -p rueda
    """
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{command.parent}:{os.environ['PATH']}"}
    done = subprocess.run([bash, "--norc", "-c", script], env=environment, text=True, capture_output=True, timeout=60)
    assert done.stdout.splitlines() == ["naive,batch-norm+lamb", "complete -o default -F _rueda_completion rueda"], done
