from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from commandline import Launches, catch_launches, rueda
from rueda.cli.run import CONTEXT, run
from rueda.errors import LaunchError
from rueda.world.cores import usable_cores
from rueda.world.launch import OutputOptions

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command(name="run", context_settings=CONTEXT)(run)
app.command(name="other")(lambda: None)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launches:
    """What would have been launched."""
    return catch_launches(monkeypatch, 7)


def call(*words: str) -> Any:
    return CliRunner().invoke(app, ["run", *words])


@pytest.mark.parametrize(
    ("words", "program", "module", "slots"),
    [
        (["-np", "4", "train.py"], ("train.py",), False, [4]),
        (["-np", "2", "train.py", "-np", "3", "--help", "--"], ("train.py", "-np", "3", "--help", "--"), False, [2]),
        (["-np", "2", "-m", "tool.train", "-m", "x"], ("tool.train", "-m", "x"), True, [2]),
        (["-np", "2", "--", "-odd.py", "-v"], ("-odd.py", "-v"), False, [2]),
        (["-np", "5", "-H", "a:4,b:4", "python", "train.py"], ("python", "train.py"), False, [4, 1]),
        (["-H", "a:4,b:3", "train.py"], ("train.py",), False, [4, 3]),
    ],
)  # fmt: skip
def test_words(
    words: list[str],
    program: tuple[str, ...],
    module: bool,
    slots: list[int],
    launched: Launches,
) -> None:
    result = call(*words)
    assert result.exit_code == 7, result.output
    ((plan, output),) = launched
    assert (plan.program, plan.module, [host.slots for host in plan.hosts]) == (program, module, slots)
    assert output == OutputOptions()


def test_options(launched: Launches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hosts").write_text("a slots=2\nb:1\n")
    monkeypatch.setenv("TOKEN", "t")
    words = [
        "--hostfile",
        str(tmp_path / "hosts"),
        "--ssh",
        "ssh -F 'my config'",
        "--python",
        "/opt/python",
        "-x",
        "A=1",
    ]
    assert call(*words, "-x", "TOKEN", "--quiet-ranks", "--output", "logs", "train.py").exit_code == 7
    ((plan, output),) = launched
    assert [(host.name, host.slots) for host in plan.hosts] == [("a", 2), ("b", 1)]
    assert plan.ssh == ("ssh", "-F", "my config")
    assert plan.python == "/opt/python"
    assert (plan.environment, plan.references) == ({"A": "1"}, ("TOKEN",))
    assert output == OutputOptions(quiet_ranks=True, folder=Path("logs"))


@pytest.mark.parametrize(
    "words",
    [
        ["train.py"],
        ["-np", "0", "train.py"],
        ["-np", "-2", "train.py"],
        ["-np", "3", "-H", "a:1,b:1", "train.py"],
        ["-H", "a:1", "--hostfile", "h", "train.py"],
        ["--hostfile", "no-such-file", "train.py"],
        ["-H", "-oProxyCommand=x", "train.py"],
        ["-np", "2", "-x", "NOT_SET_ANYWHERE", "train.py"],
        ["-np", "2", "-x", "A;touch x;B=1", "train.py"],
        ["-np", "2", "--slurm", "-x", "A;touch x;B=1", "train.py"],
        ["-np", "2", "--slurm", "-x", "A\nB", "train.py"],
        ["-np", "2", "--slurm", "-x", "=1", "train.py"],
        ["-np", "2", "--slurm", "-x", "1A=1", "train.py"],
        ["-np", "2", "--slurm", "-x", "Ä=1", "train.py"],
        ["-np", "2", "--slurm", "--submit", "-x", "NOT_SET_ANYWHERE", "train.py"],
        ["-np", "2", "--kubernetes", "--image", "i", "-x", "a.b=1", "train.py"],
        ["-np", "2", "--ssh", "", "train.py"],
        ["-np", "2", "--ssh", "ssh -F 'my config", "train.py"],
        ["-np", "4", "--slurm", "--nodes", "3", "train.py"],
        ["-np", "4", "--kubernetes", "train.py"],
        ["-np", "4", "--kubernetes", "--image", "i", "--slurm", "train.py"],
        ["-np", "4", "--nodes", "2", "train.py"],
        ["-np", "4", "--submit", "train.py"],
        ["-np", "4", "--image", "i", "train.py"],
    ],
)
def test_mistakes_are_one_line(words: list[str], launched: Launches) -> None:
    error = call(*words).exception
    assert isinstance(error, LaunchError)
    assert "\n" not in str(error)
    assert launched == []


@pytest.mark.parametrize("command", [["run", "-np"], ["horovodrun", "-np"], ["train", "linear", "--workers"]])
def test_a_mistyped_number_of_workers_is_one_line(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    program = [] if command[0] == "train" else ["train.py"]
    most, number = min(4096, 100 * usable_cores()), "99999999999"
    assert rueda(*command, number, *program) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"rueda: -np: expected at most {most:,} workers on this host, got {number}; ")


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf", "1e9"])
def test_a_grace_that_is_no_time(
    seconds: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUEDA_GRACE", "30")  # restored after the test
    assert rueda("run", "-np", "2", "--grace", seconds, "train.py") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--grace" in line and "expected seconds from 0 to 86,400" in line


def test_the_grace_reaches_the_plan(launched: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUEDA_GRACE", "50")
    call("-np", "2", "train.py")
    call("-np", "2", "--grace", "90", "train.py")
    assert [plan.grace for plan, _ in launched] == [50, 90]


def test_other_places() -> None:
    script = call("-np", "8", "--nodes", "2", "--slurm", "--sbatch=--gres=gpu:4", "train.py", "--lr", "0.1")
    assert "#SBATCH --gres=gpu:4\n" in script.output
    assert "  worker python -u train.py --lr 0.1\n" in script.output
    text = call("-np", "8", "--nodes", "2", "--kubernetes", "--image", "i", "train.py").output
    assert "kind: TrainJob" in text and "numProcPerNode: 4" in text


def test_files_for_other_places_hold_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    for words in (["--slurm"], ["--kubernetes", "--image", "i"]):
        text = call("-np", "2", *words, "-x", "TOKEN", "-x", "SEED=7", "train.py").output
        assert "TOKEN" in text and "SEED" in text and "hunter2" not in text


def test_the_driver_loads_no_torch() -> None:
    code = "import sys, rueda.cli.run, rueda.world.launch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
