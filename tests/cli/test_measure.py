"""``rueda measure`` as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from commandline import settle_in
from jobshere import fork_workers_of_jobs, run_jobs_here
from rueda.cli.measure import EPILOG, measure
from rueda.errors import RuedaError
from rueda.measure.request import Budget
from rueda.records import Recipe
from rueda.records.profile import Profile


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle_in(tmp_path, monkeypatch, columns=160)
    little = Budget(steps=0.3, communication=0.1, together=0.3, noise=0.2, longest_step=0.5, sizes=(4, 4096, 65536))
    monkeypatch.setattr("rueda.measure.request.QUICK", little)


def rueda_measure(*words: str) -> None:
    app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(epilog=EPILOG)(measure)
    app(["clouds.py", *words], standalone_mode=False)


def test_a_profile_with_two_workers(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fork_workers_of_jobs(monkeypatch)
    rueda_measure("--quick", "--workers", "2", "--batches", "8,24", "--set", "rate=0.01")
    shown = capfd.readouterr()
    profile = Profile.load("profile.json")
    assert [step.batch for step in profile.steps] == [8, 24]
    assert [link.workers for link in profile.communication] == [pair.workers for pair in profile.together] == [2]
    assert profile.overlap == profile.together[0].overlap and (profile.contention or 0) > 0
    assert len(profile.noise) == 2 and profile.noise[0].step < profile.noise[1].step
    assert Recipe.from_toml(profile.recipe).rate == 0.01
    assert (profile.examples, profile.parameters, profile.gradient_bytes) == (240, 195, 780)
    link = profile.communication[0].backend
    for text in ("with 2", f"all-reduce among 2 workers ({link})", "gradient noise scale at step"):
        assert text in shown.out
    assert "next: rueda plan profile.json" in shown.out
    assert "1/3 step time" in shown.err and "3/3 2 workers" in shown.err


def test_one_worker_as_json(capfd: pytest.CaptureFixture[str]) -> None:
    rueda_measure("--quick", "--workers", "1", "--batches", "8", "--json", "--output", "sub/p.json")
    shown = capfd.readouterr()
    assert json.loads(shown.out) == json.loads(Path("sub", "p.json").read_text()) and shown.err == ""
    profile = Profile.load("sub/p.json")
    assert profile.communication == () and profile.overlap is None and profile.contention is None


MISTAKES = {
    "no numbers": (["--workers", "two"], "--workers: expected whole numbers, separated by commas, got 'two'"),
    "no worker": (["--workers", "0"], "workers: expected 1 or more, got 0"),
    "no batches": (["--batches", ","], "--batches: expected whole numbers, separated by commas"),
    "too large a batch": (["--batches", "8,500", "--workers", "1"], "batch: expected from 1 to 240, got 500"),
    "workers as a setting": (["--set", "workers=4"], "--set workers has no effect in this command; give the numbers"),
    "an unknown setting": (["--set", "speed=9"], "speed"),
    "a folder as the output": (["--output", "."], "it is a folder; choose the name of a file"),
    "a folder that cannot be": (["--output", "clouds.py/p.json"], "clouds.py is not a folder that can be written to"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_jobs_here(monkeypatch)
    words, message = MISTAKES[name]
    with pytest.raises(RuedaError) as caught:
        rueda_measure(*words)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not Path("profile.json").exists()


def test_help_loads_no_torch() -> None:
    check = "import rueda.cli.measure, rueda.measure, sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0
