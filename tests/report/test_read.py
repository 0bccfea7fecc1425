"""From files to sections: what is read, what is left out, what is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from report.samples import TABLE, write_json, write_others, write_run, write_study
from rueda.errors import RunError
from rueda.records import Row
from rueda.records.descent import GradientDescent
from rueda.report.collect import collect
from rueda.report.model import Entry, Section
from rueda.report.words import describe_recipe, sentences

EPOCH = Row(
    kind="epoch", epoch=1, step=9, examples=72, seconds=1.0, train_loss=1.0, train_accuracy=0.5, images_per_second=10.0,
    rate=0.1, global_batch=8,
).to_json()  # fmt: skip
STUDY = {"format": 1, "kind": "techniques", "task": "t", "workers": 8, "epochs": 3, "rows": []}


def test_a_study_with_its_runs(tmp_path: Path) -> None:
    (section,) = collect([write_study(tmp_path, seeds=2)])
    assert (section.title, len(section.entries), len(section.lines)) == ("glyphs-cnn on 8 workers", 12, 24)
    roles = {entry.role: entry.name for entry in section.entries}
    assert (roles["base"], roles["naive"], roles["best"]) == ("one-worker", "naive", "lamb")  # in as many epochs
    naive = section.entries[1]
    assert (naive.test, naive.verdict, naive.rehearsed) == (0.583, "lost", True)
    line = next(line for line in section.lines if line.entry == 1)
    assert line.progress["epochs"] == list(range(1, 13))
    assert line.progress["updates"] == list(range(12, 145, 12))
    assert line.recipe and describe_recipe(line.recipe)[0] == "8 × 512 = 4,096 examples an update"
    # Step rows give fractions of an epoch: step 1 of 12 is a twelfth.
    assert line.rate["epochs"][1] == pytest.approx(1 / 12, rel=1e-5)
    assert "lamb, the best of 8 remedies, recovers them in the same 12 epochs" in sentences(section)[0]


def test_every_kind_of_study(tmp_path: Path) -> None:
    (section,) = collect([write_others(tmp_path)])
    assert [plot.name for plot in section.plots] == ["throughput", "steps", "surface", "contours"]
    assert "Throughput saturates at a local batch of 128" in " ".join(sentences(section))
    assert "is about 511 (400 to 650)" in " ".join(sentences(section))


def test_the_loss_surface_is_the_mean_squared_error(tmp_path: Path) -> None:
    write_others(tmp_path)
    data = json.loads((tmp_path / "gd.json").read_text())["data"]
    mean = GradientDescent.load(tmp_path).data.moments()
    for w, b in ((0.0, 0.0), (10.0, 2.0), (20.0, -18.0)):
        direct = sum((w * x + b - y) ** 2 for x, y in zip(data["x"], data["y"], strict=True)) / len(data["x"])
        form = w * w * mean["xx"] + b * b + 2 * w * b * mean["x"] - 2 * w * mean["xy"] - 2 * b * mean["y"] + mean["yy"]
        assert form == pytest.approx(direct, rel=1e-12)


def test_runs_of_two_tasks_and_a_folder_of_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", task="one")
    write_run(tmp_path / "runs" / "b", task="two", final=None)
    write_run(tmp_path / "runs" / "c", task="one", steps=False)
    sections = collect([tmp_path / "runs", tmp_path / "runs" / "a", tmp_path / "runs" / "a" / "metrics.jsonl"])
    assert [(section.task, len(section.entries)) for section in sections] == [("one", 2), ("two", 1)]
    assert sections[1].entries[0].verdict == "diverged"
    assert sections[1].entries[0].test is None  # what it had before is no result
    assert sentences(sections[1]) == ["b diverged in the epoch that ended at update 48."]


def test_what_is_missing_is_left_out_and_noted(tmp_path: Path) -> None:
    write_study(tmp_path / "study", seeds=1)
    study = json.loads((tmp_path / "study" / "study.json").read_text())
    write_run(tmp_path / "outside")
    study["rows"][0]["runs"] = ["runs/nowhere"]
    study["rows"][1]["runs"] = ["../outside"]
    (tmp_path / "study" / "runs" / "2-0" / "recipe.toml").write_text("batch = -1")
    (tmp_path / "study" / "runs" / "3-0" / "metrics.jsonl").write_text("")
    write_json(tmp_path / "study" / "study.json", study)
    (section,) = collect([tmp_path / "study"])
    assert len(section.entries) == 12
    assert [line.entry for line in section.lines] == [2, *range(4, 12)]
    assert len(section.notes) == 4
    assert "outside the study's folder" in section.notes[1]


ROW = {
    "name": "lars",
    "summary": "",
    "workers": 8,
    "global_batch": 512,
    "epochs": 3,
    "updates": 60,
    "test_accuracy": 0.9,
    "seconds": 4.0,
    "images_per_second": 900.0,
    "rehearsed": True,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": 7}, r"rows\[0\].name: expected str, got 7"),
        ({"workers": "eight"}, r"rows\[0\].workers: expected int, got 'eight'"),
        ({"test_accuracy": "<b>"}, "test_accuracy: expected float, got '<b>'"),
        ({"images_per_second": True}, "images_per_second: expected float, got True"),
        ({"verdict": "<b>"}, r"rows\[0\].verdict: expected kept, lost, undecided or diverged"),
        ({"runs": [3]}, r"runs\[0\]: expected str, got 3"),
        ({"runs": 3}, "runs: expected a list, got 3"),
        ({"rehearsed": "no"}, "rehearsed: expected bool, got 'no'"),
    ],
)
def test_a_study_with_values_of_the_wrong_type(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write_json(tmp_path / "study.json", {**STUDY, "rows": [{**ROW, **changes}]})
    with pytest.raises(RunError, match=message) as caught:
        collect([tmp_path])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, r"points\[0\].batch: expected a number, more than 0, got 0"),
        ({"images_per_second": "fast"}, r"points\[0\].images_per_second: expected float, got 'fast'"),
        ({"spread": -1.0}, r"points\[0\].spread: expected a number, 0 or more, got -1.0"),
    ],
)
def test_throughput_with_wrong_values(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    point = {"batch": 8, "images_per_second": 3.0, "spread": 0.0, "milliseconds_per_update": 1.0, **changes}
    write_json(tmp_path / "throughput.json", {"format": 1, "kind": "throughput", "task": "t", "points": [point]})
    with pytest.raises(RunError, match=message) as caught:
        collect([tmp_path])
    assert "\n" not in str(caught.value)


def test_some_seeds_diverged(tmp_path: Path) -> None:
    row = {**ROW, "diverged": 1, "seeds": [0, 1, 2], "verdict": "diverged"}
    write_json(tmp_path / "study.json", {**STUDY, "rows": [row]})
    (section,) = collect([tmp_path])
    assert (section.entries[0].diverged, section.entries[0].num_diverged, section.entries[0].role) == (True, 1, "other")


def _write(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (None, "", "expected a run folder .* a study folder .*, got 'no such path'"),
        ("notes.txt", "hello", "got 'a folder without any'"),
        ("study.json", "{", "study.json: expected JSON"),
        ("study.json", "[" * 100_000, "study.json: expected JSON"),
        ("study.json", "[]", "expected a study .*, got 'list'"),
        ("study.json", '{"kind": "gd"}', "expected a study .*, got 'gd'"),
        ("study.json", '{"kind": "techniques", "format": 2, "rows": []}', "expected format 1, got 2"),
        ("study.json", '{"kind": "techniques", "format": 1, "rows": 3}', "rows: expected a list, got 3"),
        ("gd.json", "{", "gd.json: expected JSON"),
        ("gd.json", "[" * 100_000, "gd.json: expected JSON"),
        ("gd.json", '{"kind": "techniques"}', "expected gradient descent .*kind 'gd'.*, got 'techniques'"),
        (
            "throughput.json",
            '{"kind": "throughput", "format": 1}',
            "expected task, points, which are missing",
        ),
        ("metrics.jsonl", "", "expected rows in metrics.jsonl, got none"),
        ("metrics.jsonl", '{"kind": "epoch"}\n', r"metrics\.jsonl, line 1: row: expected epoch, step, examples"),
        ("metrics.jsonl", EPOCH + "\n", "expected a run folder with environment.json"),
        ("metrics.jsonl", "{broken\n{}\n", "line 1: expected a JSON row"),
    ],
)
def test_refused_in_one_line(tmp_path: Path, name: str | None, text: str, message: str) -> None:
    if name is not None:
        _write(tmp_path / "place", name, text)
    with pytest.raises(RunError, match=message) as caught:
        collect([tmp_path / "place"])
    assert "\n" not in str(caught.value)
    assert "place" in str(caught.value)


def test_nothing_asked_for() -> None:
    with pytest.raises(RunError, match="expected at least one run or study folder"):
        collect([])


WEAK = {name: {"test_accuracy": 0.5} for name, accuracy, _ in TABLE[2:] if accuracy is not None}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "8 rehearsed workers with nothing else changed lose 28.8 points"),
        (
            {"naive": {"test_accuracy": 0.873}},
            "(+0.2 points); the best of 8 remedies is lamb (87.4",
        ),
        (
            {"naive": {"test_accuracy": 0.876}},
            "keep one worker's test accuracy (+0.5 points); the best of 8 remedies, lamb, does no better (87.4",
        ),
        (
            {"naive": {"verdict": "diverged", "diverged": 2}},
            "nothing else changed diverge; lamb, the best of 8 remedies, recovers the",
        ),
        (
            {**WEAK, "lamb": {"test_accuracy": 0.841}},
            "still ends 3.0 points below one worker (84.1",
        ),
        ({**WEAK, "naive": {"test_accuracy": 0.6}}, "batch-norm, does no better (50.0"),
        (
            {"naive": {"test_accuracy": 0.863}},
            "end 0.8 points below one worker's test accuracy, undecided (−1.5 to −0.1)",
        ),
        (
            {"lamb": {"test_accuracy_spread": 0.03}},
            "; whether lamb, the best of 8 remedies, recovers them is undecided (",
        ),
        (
            {"sqrt-scaling": {"name": "one-worker+lamb", "workers": 1, "test_accuracy": 0.9, "rehearsed": False}},
            "lamb, still ends 2.6 points below the strongest row of one worker (87.4",
        ),
        ({"lamb": {"seeds": [0]}}, "difference +0.3 points ("),
    ],
)
def test_the_sentence(tmp_path: Path, changes: dict[str, dict[str, Any]], sentence: str) -> None:
    write_study(tmp_path, seeds=3, steps=False)
    study = json.loads((tmp_path / "study.json").read_text())
    for row in study["rows"]:
        row.update(changes.get(row["name"], {}))
    write_json(tmp_path / "study.json", study)
    (section,) = collect([tmp_path])
    assert sentence in sentences(section)[0]


def test_naive_workers_that_sometimes_diverge_are_not_compared_by_their_other_seeds() -> None:
    rows = [
        Entry(name="one-worker", workers=1, test=0.9, role="base"),
        Entry(name="naive", workers=8, test=0.88, against=-2.0, diverged=True, num_diverged=1, num_seeds=3,
              role="naive"),
        Entry(name="lamb", workers=8, test=0.85, against=-5.0, verdict="lost", role="best"),
    ]  # fmt: skip
    told = sentences(Section(title="", task="", entries=rows, is_study=True))[0]
    assert "diverge; the only remedy, lamb, still ends 5.0 points below one worker" in told and "recovers" not in told
