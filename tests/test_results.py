"""Every result in the repository says how to get it again, and was made with a commit that is in the history.

Older results, made from modified trees, say so themselves (``provenance`` beside their commit) and stand in a list here
that may only shrink.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import runpy
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks_here import names_in_benchmark
from labs.stored_results import all_of_them
from rueda.records import Run
from rueda.records.archive import FILE as ARCHIVE
from rueda.records.archive import read_archive
from rueda.records.study import Study
from rueda.report.kinds import FILES as RECORDS

ROOT = Path(__file__).parents[1]
RESULTS, BENCHMARKS = ROOT / "docs" / "results", ROOT / "benchmarks" / "results"
STORED = ROOT / "src" / "rueda" / "labs" / "stored"
AUDITS = STORED / "lab_2_audits.json"
LABS = [AUDITS, STORED / "lab_1_skip_connections.json"]
"""the labs' own results; the others beside them are copies, which tests/labs/test_stored.py compares"""
FILES = sorted([*RESULTS.glob("*/*.json"), *RESULTS.glob(f"*/{ARCHIVE}"), *BENCHMARKS.glob("*.json"), *LABS])

OLDER = {
    "docs/results/cifar10-64-workers/runs.jsonl": "97badb280c686a60",
    "docs/results/cifar10-64-workers/study.json": "13933d8877d6b1cf",
    "docs/results/cifar10-8-workers/runs.jsonl": "93f82e8a2f76485f",
    "docs/results/cifar10-8-workers/study.json": "847ef12eac03f939",
    "docs/results/examine-cifar10/curvature.json": "886cc865ee47e62a",
    "docs/results/examine-cifar10/landscape.json": "e32b5bcf5fa0186a",
    "docs/results/examine-fashion-mnist/curvature.json": "3c41dd788f70133f",
    "docs/results/examine-fashion-mnist/landscape.json": "2a997b656c9f1400",
    "docs/results/forecast-fashion-mnist/forecast.json": "baee1c9213170764",
}
"""made before a result had to name a clean commit, with the beginning of their SHA-256; take a file out when it is made
anew, and add none; the forecast has another checksum since its law was fitted anew to the same points"""


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def environments(file: Path) -> Iterator[dict[str, Any]]:
    """Yield what a result says about where it was made; an archive says it of each run, the audits of each script."""
    if file.name == ARCHIVE:
        yield from (run.environment() for run in read_archive(file.parent).values())
    elif file.name == "environment.json":
        yield Run(file.parent).environment()
    elif file == AUDITS:
        yield from (one["check"]["environment"] for one in json.loads(file.read_text()).values())
    else:
        yield json.loads(file.read_text())["environment"]


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_a_result_says_how_to_get_it_again(file: Path) -> None:
    found = list(environments(file))
    assert found
    for about in found:
        assert about["command"].strip() and about["time"]
        assert {"python", "rueda", "torch"} <= about["versions"].keys()
        assert about["machine"]["processor"] and about["machine"]["cores"] >= 1
        clean = re.fullmatch("[0-9a-f]{12}", about["commit"] or "") is not None
        assert clean or about.get("provenance"), (
            f"{name_of(file)} names {about['commit']}, no clean commit: make it anew"
        )


def git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)


def test_the_commit_of_a_result_is_in_the_history() -> None:
    try:
        shallow = git("rev-parse", "--is-shallow-repository")
    except FileNotFoundError:
        pytest.skip("there is no git")
    if shallow.returncode or shallow.stdout.strip() != "false":
        pytest.skip("no repository with its whole history")
    assert git("merge-base", "--is-ancestor", "0123456789ab", "HEAD").returncode  # the check can fail
    named: dict[str, str] = {}
    for file in FILES:
        named |= {about["commit"]: name_of(file) for about in environments(file) if not about.get("provenance")}
    for commit, name in named.items():
        assert not git("merge-base", "--is-ancestor", commit, "HEAD").returncode, f"{name}: {commit}"


def test_every_stored_result_of_the_labs_is_checked() -> None:
    copies = {f"{name}.json" for name in all_of_them()}
    assert {file.name for file in STORED.glob("*.json")} == copies | {file.name for file in LABS}


@pytest.mark.parametrize("file", [file for file in FILES if file not in LABS], ids=name_of)  # those are in their code
def test_a_result_names_its_seeds(file: Path) -> None:
    if file.name == Study.FILE:
        assert all(row.seeds for row in Study.load(file).rows)
    elif file.name == ARCHIVE:
        assert all(isinstance(run.recipe().seed, int) for run in read_archive(file.parent).values())
    elif file.name == "environment.json":
        assert isinstance(Run(file.parent).recipe().seed, int)
    else:
        assert re.search(r'"seeds?"|seed \d', file.read_text()) or name_of(file) in OLDER


def test_older_results_are_a_list_that_only_shrinks() -> None:
    for name, checksum in OLDER.items():
        found = hashlib.sha256((ROOT / name).read_bytes()).hexdigest()[:16]
        assert found == checksum, f"{name} is another file: a result that is made anew is no longer in OLDER"
    marked = {name_of(file) for file in FILES if any(about.get("provenance") for about in environments(file))}
    assert marked - OLDER.keys() == set(), "a new result has no mark: commit, and make it anew"
    assert OLDER.keys() - marked == set(), "made anew: take it out of OLDER"


def test_results_are_few_files() -> None:
    """A study is its table and an archive of its runs: `rueda archive STUDY docs/results/NAME`."""
    known = {
        *RECORDS,
        ARCHIVE,
        "environment.json",
        "metrics.jsonl",
        "recipe.toml",
        "README.md",
        "surface.png",
        "table.json",
        "text.md",
    }
    files = [file for file in RESULTS.rglob("*") if file.is_file() and file.name != "report.html"]
    assert {file.name for file in files} <= known
    assert all(len(file.relative_to(RESULTS).parts) <= 2 for file in files)
    assert {file.parent for file in RESULTS.glob("*/study.json")} == {
        file.parent for file in RESULTS.glob(f"*/{ARCHIVE}")
    }


@pytest.mark.parametrize(
    "folder", sorted(file.parent for file in RESULTS.glob("*/study.json")), ids=lambda file: file.name
)
def test_an_archive_has_every_run_of_its_study(folder: Path) -> None:
    study, runs = Study.load(folder), read_archive(folder)
    for row in study.rows:
        assert [runs[name].recipe().seed for name in row.runs] == list(row.seeds)
        last = [runs[name].rows("epoch")[-1] for name in row.runs]
        assert {one.global_batch for one in last if not one.diverged} <= {row.global_batch}
        found = [one.test_accuracy for one in last if not one.diverged and one.test_accuracy is not None]
        assert row.test_accuracy is None or sum(found) / len(found) == pytest.approx(row.test_accuracy, abs=1e-6)
    assert {name for row in study.rows for name in row.runs} == runs.keys()


def test_the_table_of_the_keras_scripts_is_that_of_its_rows() -> None:
    file = RESULTS / "horovod-keras-cifar10" / "table.json"
    if not file.is_file():
        pytest.skip("the five variants have not been trained: python examples/horovod-keras/table.py")
    table = runpy.run_path(str(ROOT / "examples" / "horovod-keras" / "table.py"))["markdown"]
    assert table(json.loads(file.read_text())) in (RESULTS / "README.md").read_text()


def test_the_table_of_the_panel_is_that_of_its_cases() -> None:
    table = names_in_benchmark("plans")["table"]
    panel = json.loads((BENCHMARKS / "plans.json").read_text())
    page = (ROOT / "docs" / "plan.md").read_text()
    assert table(panel["cases"]) in page and panel["environment"]["commit"] in page
    assert f"Kept: {panel['kept']['8']} at 8 workers, {panel['kept']['64']} at 64" in page


def test_the_table_of_the_parallel_forms_is_that_of_its_cases() -> None:
    import plan.profiles  # noqa: F401  (a folder of the tests, beside a benchmark of that name)

    table = names_in_benchmark("parallel")["markdown"]
    cases = json.loads((BENCHMARKS / "parallel.json").read_text())["cases"]
    assert table(cases) in (ROOT / "docs" / "parallelism_study.md").read_text()


@pytest.fixture
def common(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmarks_common", ROOT / "benchmarks" / "_common.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("commit", ["0123456789ab+", None])
def test_a_benchmark_of_a_modified_tree_writes_elsewhere_or_not(
    commit: str | None,
    common: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    about = {"commit": commit, "command": "loop.py"}
    monkeypatch.setattr(common, "environment", lambda: about)
    monkeypatch.setattr(common, "COMMITTED", tmp_path / "committed")
    monkeypatch.setattr(common, "RESULTS", tmp_path / "committed")
    with pytest.raises(SystemExit, match="expected a clean commit"):
        common.save("loop", {"ratio": 1.5}, seeds=())
    assert not (tmp_path / "committed").exists() and json.loads(capsys.readouterr().out)["ratio"] == 1.5
    monkeypatch.setattr(common, "RESULTS", tmp_path / "elsewhere")
    common.save("loop", {"cases": {"a": 1}}, seeds=[3, 4])
    assert json.loads((tmp_path / "elsewhere" / "loop.json").read_text()) == {
        "cases": {"a": 1}, "seeds": [3, 4], "environment": about,
    }  # fmt: skip


def test_cases_of_another_commit_are_not_kept(
    common: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "COMMITTED", tmp_path)
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    assert common.earlier("loop") == {}
    monkeypatch.setattr(common, "environment", lambda: {"commit": "0123456789ab"})
    common.save("loop", {"cases": {"a": 1}}, seeds=())
    assert common.earlier("loop")["cases"] == {"a": 1}
    monkeypatch.setattr(common, "environment", lambda: {"commit": "ba9876543210"})
    assert common.earlier("loop") == {}
    monkeypatch.setattr(common, "environment", lambda: {"commit": "0123456789ab+"})
    monkeypatch.setattr(common, "COMMITTED", tmp_path / "another")
    common.save("loop", {"cases": {"a": 1}}, seeds=())
    assert common.earlier("loop") == {}  # two modified trees may differ


def test_other_ranks_may_write_more_than_a_pipe_holds(common: ModuleType) -> None:
    code = "import os; print('x' * 10 if os.environ['RANK'] == '0' else 'x' * 2**20); print('[1]')"
    assert common.answer_of(["-c", code], 2) == [1]
    assert common.answer_of(["-c", "import os; exit(os.environ['RANK'] == '1')"], 2) is None
