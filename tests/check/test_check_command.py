"""``rueda check`` and ``rueda run --check`` as people type them."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from checkhere import GALLERY
from commandline import rueda
from rueda.check.audit import launching
from rueda.check.audit.judge.checks import CHECKS
from rueda.records.script_check import ScriptCheck

SAME_BATCHES = GALLERY / "wrong" / "same_batches_ddp.py"
HANGS = GALLERY / "wrong" / "barrier_on_rank_0.py"
RIGHT = GALLERY / "right" / "ddp_arguments.py"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")


def test_a_mistake_with_its_place_its_cure_the_table_and_a_page(capfd: pytest.CaptureFixture[str]) -> None:
    assert rueda("check", "-np", "2", "--output", "check.json", str(SAME_BATCHES)) == 1
    printed = capfd.readouterr().out
    line = next(n for n, text in enumerate(SAME_BATCHES.read_text().splitlines(), 1) if "# wrong" in text)
    assert "failed: same-batches: ranks 0 and 1 read the same examples in the same order" in printed
    assert f"{SAME_BATCHES.name}:{line}: loader = DataLoader(" in printed
    assert "cure: divide the data: sampler=DistributedSampler(dataset)" in printed
    assert "failed: 1" in printed.splitlines()[-1]
    assert ScriptCheck.load("check.json").has_failed
    assert rueda("report", "check.json", "--output", "page.html") == 0
    page = Path("page.html").read_text()
    assert "same-batches" in page and "DistributedSampler" in page


def test_a_right_script_as_json_ended_after_some_updates(capfd: pytest.CaptureFixture[str]) -> None:
    assert rueda("check", "-np", "2", "--updates", "3", "--json", str(RIGHT)) == 0
    out, err = capfd.readouterr()
    result = json.loads(out)
    assert {one["status"] for one in result["checks"]} <= {"passed", "not seen"}
    assert result["workers"] == 2 and result["script_status"] == 0
    assert "Traceback" not in err


def test_ranks_that_wait_in_vain_are_ended_and_both_places_shown(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The watch of this command waits 10 s for a slow rank; in this script none moves any more.
    monkeypatch.setattr(launching, "Watch", functools.partial(launching.Watch, patience=3.0))
    assert rueda("run", "--check", "-np", "2", str(HANGS)) == 1
    printed = capfd.readouterr().out
    for number, text in enumerate(HANGS.read_text().splitlines(), 1):
        if "# wrong" in text:
            assert f"{HANGS.name}:{number}" in printed


FAILS = """
import sys
import torch
import torch.distributed as dist
print("before")
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(4, 2)).sum().backward()
optimizer.step()
dist.destroy_process_group()
loaded = {"torch._dynamo", "torch.distributed.tensor", "sympy"} & sys.modules.keys()
sys.exit(f"the observation has loaded {loaded}, which takes a second" if loaded else 7)
"""


def test_a_script_that_fails_keeps_its_status(capfd: pytest.CaptureFixture[str]) -> None:
    Path("fails.py").write_text(FAILS)
    assert rueda("check", "-np", "2", "fails.py") == 7
    assert "the script has ended with status 7" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.py"], "the script nowhere.py does not exist"),
        (["ls"], "expected a Python script such as train.py, got 'ls'"),
        (["-np", "0", "train.py"], "-np"),
        (["--updates", "-1", "train.py"], "--updates"),
        (["--output", "train.py/check.json", "train.py"], "train.py/check.json"),
    ],
)
def test_mistakes_are_one_line(words: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text("raise SystemExit\n")
    assert rueda("check", *words) == 2
    err = capfd.readouterr().err
    assert message in err and len(err.splitlines()) == 1


def test_the_page_lists_every_check() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "check-a-script.md").read_text(encoding="utf-8")
    for name, holds in CHECKS.items():
        assert f"| `{name}` | {holds} |" in page
