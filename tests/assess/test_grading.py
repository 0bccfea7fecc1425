"""Grading without a run: weights that are not new, examples that were changed, limits, certificates, a class."""

from __future__ import annotations

import base64
import json
import os
import runpy
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rueda.assess import class_grading
from rueda.assess.certificate import certify, is_genuine, new_key, read_key
from rueda.assess.class_grading import grade_class
from rueda.assess.evaluation import EvaluationAnswer, Provenance, Timeline, _load, strange
from rueda.assess.grading import _better_on_validation, grade
from rueda.assess.material import DataRequest, material, write_here
from rueda.assess.origin import _TRAIN, _UNKNOWN, _VALIDATION, _likeness, provenance
from rueda.assess.running import GradingWatch, RunAnswer
from rueda.assess.seal import keep_sealed, sealer
from rueda.assess.settings import Settings, Submission, TaskData
from rueda.assess.watch import encoded, example_digests
from rueda.check.audit.judge.journals import read_journals
from rueda.data import Arrays
from rueda.errors import AssessError, JobError
from rueda.records.assessment import FAILED, Assessment, Certificate, Gradebook, SavedEpoch
from rueda.records.script_check import Verdict
from rueda.tasks.datasets import glyphs
from rueda.tasks.models import small_cnn

SETTINGS = Settings(data=TaskData(), target_accuracy=0.75, within=100)
RUN = RunAnswer(
    status=0, checks=(Verdict("gradients-not-averaged", "passed"),), isolation=("own session", "Landlock 7")
)
EPOCHS = tuple(SavedEpoch(number, 0.8, 0.8, 10.0 * number, 12_000) for number in (1, 2, 3))
FOUND = EvaluationAnswer(
    epochs=EPOCHS,
    initial=0.1,
    provenance=Provenance(examples=36_000, train=1.0),
    num_train=12_000,
    steps=(94, 94),
    num_validation=2000,
    num_held_out=4000,
)

# What is found, and the only criterion that it breaks.
BROKEN = {
    "a worker that does not train": (RUN, replace(FOUND, steps=(94, 0)), "distributed"),
    "the same examples": (RUN, replace(FOUND, provenance=Provenance(examples=9, train=1, shared=0.9)), "distributed"),
    "no exchange": (replace(RUN, checks=(Verdict("gradients-not-averaged", "not seen"),)), FOUND, "distributed"),
    "one epoch too few": (RUN, replace(FOUND, epochs=EPOCHS[:1]), "accuracy"),
    "a gap": (RUN, replace(FOUND, epochs=(EPOCHS[0], EPOCHS[2])), "accuracy"),
    "an epoch of a few steps": (RUN, replace(FOUND, epochs=tuple(replace(e, note="few") for e in EPOCHS)), "accuracy"),
    "too slow": (RUN, replace(FOUND, epochs=tuple(replace(e, seconds=101.0) for e in EPOCHS)), "time"),
    "a long preparation": (RUN, replace(FOUND, preparation=115.0), "time"),
    "a preparation that computes": (RUN, replace(FOUND, preparation=29.0, preparation_computing=91.0), "time"),
    "another mistake": (replace(RUN, checks=(*RUN.checks, Verdict("same-file", "failed"))), FOUND, "correct"),
    "weights that were good before": (RUN, replace(FOUND, initial=0.7), "own-model"),
    "weights that were not drawn": (RUN, replace(FOUND, strange="they are equal"), "own-model"),
    "weights that change between steps": (RUN, replace(FOUND, num_changes=1), "own-model"),
    "no example seen": (RUN, replace(FOUND, provenance=Provenance()), "task-data"),
    "better on validation examples": (
        RUN, replace(FOUND, epochs=tuple(replace(e, public=0.95) for e in EPOCHS)), "validation"
    ),
    "a patch": (replace(RUN, touched=("torch.save was replaced",)), FOUND, "untouched"),
    "a failure": (replace(RUN, status=1, error="rank 0: ValueError"), FOUND, "runs"),
}  # fmt: skip


def test_what_is_asked_for_passes() -> None:
    grades = grade(SETTINGS, RUN, FOUND, None)
    assert grades.passed and grades.points == 100, grades.criteria


@pytest.mark.parametrize("right", [0.03, 0.1, 0.5, 0.8, 0.97])
@pytest.mark.parametrize("num_validation", [100, 400, 2000])
def test_nobody_is_accused_by_chance(right: float, num_validation: int) -> None:
    """300 honest scripts of ten epochs each, whose validation examples are two points easier, as a split may be."""
    drawn = np.random.default_rng(0)
    accused = 0
    for _ in range(300):
        public = drawn.binomial(num_validation, min(1.0, right + 0.02), size=10) / num_validation
        own = drawn.binomial(1000, right, size=10) / 1000
        epochs = tuple(SavedEpoch(i, own[i], public[i], 1.0, 1) for i in range(10))
        found = replace(FOUND, epochs=epochs, num_validation=num_validation, num_held_out=1000)
        accused += _better_on_validation(found) is not None
    assert accused == 0


@pytest.mark.parametrize(("own", "public", "told"), [(0.1, 0.16, False), (0.85, 0.88, False), (0.8, 0.9, True)])
def test_who_trains_on_validation_examples_is_found(own: float, public: float, told: bool) -> None:
    epoch = replace(EPOCHS[0], accuracy=own, public=public)
    assert (_better_on_validation(replace(FOUND, epochs=(epoch,))) == epoch) is told


def test_a_missing_epoch_is_named() -> None:
    grades = grade(SETTINGS, RUN, replace(FOUND, epochs=(EPOCHS[0], EPOCHS[2])), None)
    reason = next(one.reason for one in grades.criteria if one.name == "accuracy")
    assert reason.endswith("the best is 80.0\N{NO-BREAK SPACE}% in epoch 1; epoch-2.pt is missing")
    unread = replace(EPOCHS[0], accuracy=0.0, note="it cannot be loaded")
    grades = grade(SETTINGS, RUN, replace(FOUND, epochs=(unread,)), None)
    reason = next(one.reason for one in grades.criteria if one.name == "accuracy")
    assert reason.endswith("none was reached; epoch-1.pt does not count: it cannot be loaded")


@pytest.mark.parametrize("what", BROKEN)
def test_each_criterion_is_broken_alone(what: str) -> None:
    run, found, name = BROKEN[what]
    grades = grade(SETTINGS, run, found, None)
    assert [one.name for one in grades.criteria if one.status == FAILED] == [name]
    assert not grades.passed
    is_condition = name in ("own-model", "task-data", "validation", "untouched")
    assert (grades.points == 0) == is_condition


def test_trained_weights_are_not_taken_for_random_ones() -> None:
    torch.manual_seed(0)
    model = small_cnn()
    new = [encoded(one) for one in model.parameters()]
    assert strange(new) == ""
    with torch.no_grad():
        model[0].weight.view(-1)[0] = 0.5  # type: ignore[union-attr, operator]
        assert "beyond the bounds" in strange([encoded(one) for one in model.parameters()])
        model[0].weight.zero_()  # type: ignore[union-attr, operator]
        assert "do not vary as random ones do" in strange([encoded(one) for one in model.parameters()])


def test_a_changed_example_is_recognised() -> None:
    torch.manual_seed(0)
    train, validation = glyphs("train", num_examples=300), glyphs("test", num_examples=200, seed=1)
    for data, kind in ((train, _TRAIN), (validation, _VALIDATION)):
        images = data.floats(data.inputs[:8])
        for changed in (images.roll((3, -2), (2, 3)), images.flip(3), images + 0.5 * torch.randn_like(images)):
            assert _likeness(list(changed), train, validation) == [kind] * 8
    others = glyphs("train", num_examples=16, seed=9)
    assert _likeness(list(others.floats(others.inputs)), train, validation).count(_UNKNOWN) >= 15


def test_examples_are_recognised_however_their_normalisation_was_rounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the task normalises by its own formula; means and deviations as odd as those of real data."""
    images = torch.randint(0, 256, (200, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    labels = torch.zeros(200, dtype=torch.int64)
    train, validation = (
        Arrays(images[part], labels[part], mean=(0.4914, 0.4822, 0.4465), std=(0.247, 0.2435, 0.2616))
        for part in (slice(0, 150), slice(150, 200))
    )
    monkeypatch.setattr("rueda.assess.examples.given", lambda data: (train, validation))
    write_here(DataRequest(data=TaskData(), file=tmp_path / "data.npz"))
    (tmp_path / "task.py").write_bytes(material("task"))
    examples = runpy.run_path(str(tmp_path / "task.py"))["examples"]
    read = [example_digests(examples(split).tensors[0]) for split in ("train", "validation")]
    notes = [[{"kind": "trained", "digests": base64.b64encode(array("I", each)).decode()}] for each in read]
    found = provenance(notes, train, validation)
    assert (found.examples, found.train, found.validation, found.unknown) == (200, 0.75, 0.25, 0.0)


def test_an_epoch_is_found_by_its_weights() -> None:
    notes = [
        {"kind": "start", "at": 90.0, "processor": 0.25},
        {"kind": "forward", "at": 100.0, "processor": 1.0},
        {"kind": "trained", "step": 1, "rows": 64, "weights": ["a", "b"], "at": 101.0, "processor": 2.0},
        {"kind": "trained", "step": 2, "rows": 64, "weights": ["c", "d"], "at": 102.0, "processor": 2.0},
    ]
    mine, others = ([{**one, "digests": digests(range(first, first + 80))} for one in notes] for first in (0, 1000))
    timeline = Timeline([mine, others])
    assert timeline.step_of(frozenset("cd")) == 2 and timeline.step_of(frozenset("ad")) == 0
    assert timeline.time_of(frozenset("cd")) == 102 and timeline.time_of(frozenset("ad")) == 0
    assert timeline.computing() == 0.5 and timeline.preparation_computing == 0.75
    assert timeline.examples(0, 2) == timeline.examples(1, 2) == 128  # different ones, by layers that learn


def digests(rows: range) -> str:
    return base64.b64encode(array("I", rows).tobytes()).decode()


def test_a_line_that_somebody_else_wrote_breaks_the_seal(tmp_path: Path) -> None:
    key, file = bytes(32), tmp_path / "rank-0.jsonl"
    seal = sealer(key)
    lines = [b'{"kind":"start"}\n', b'{"kind":"end"}\n']
    sealed = [line[:-2] + f',"seal":"{seal(file.name, line)}"}}\n'.encode() for line in lines]
    file.write_bytes(b"".join(sealed))
    assert keep_sealed(tmp_path, {0: key}) == ""
    assert json.loads(sealed[0])["kind"] == "start"
    file.write_bytes(b"".join([*sealed, b'{"kind":"trai']))  # a worker was killed while it wrote
    assert keep_sealed(tmp_path, {0: key}) == "" and file.read_bytes() == b"".join(sealed)
    for kept, wrong in (
        (0, sealed[1:]), (2, [*sealed, sealed[1]]), (0, [sealed[0].replace(b"start", b"begin"), sealed[1]]),
        (1, [sealed[0], lines[1]]), (2, [*sealed, lines[1][:-1]]), (2, [*sealed, b"[1]\n", sealed[1]]),
    ):  # fmt: skip
        file.write_bytes(b"".join(wrong))
        assert "was not written by the observation" in keep_sealed(tmp_path, {0: key, 1: key})
        assert len(read_journals(tmp_path, 1).notes[0]) == kept
    file.unlink()
    assert keep_sealed(tmp_path, {0: key}) == "rank 0 has no journal"
    assert keep_sealed(tmp_path, {0: key}, complete=False) == ""  # another rank failed before it had begun


def test_a_journal_that_is_no_plain_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank-0.jsonl")
    (tmp_path / "rank-0-7.jsonl").symlink_to("/dev/zero")
    assert read_journals(tmp_path, 1).notes == [[]]
    assert keep_sealed(tmp_path, {0: bytes(32)}) == "rank 0 has no journal"
    assert not list(tmp_path.iterdir())


def test_a_place_that_the_observation_did_not_write_is_not_read(tmp_path: Path) -> None:
    watch, file = GradingWatch(tmp_path, 1), tmp_path / "rank-0.now"
    for text in ("{}", "[1]", '{"place": 1}', "[" * 60_000):
        file.write_text(text)
        assert watch._places() == {}
    place = {"place": "train.py:3", "progress": 1, "collective": True, "processor": 0.5}
    file.write_text(json.dumps(place))
    assert watch._places() == {0: place}
    file.unlink()
    os.mkfifo(file)
    assert watch._places() == {}


@pytest.mark.parametrize(
    "change", [torch.Tensor.to_sparse, lambda one: one.to("meta"), lambda one: one.to(torch.cfloat)]
)
def test_a_saved_model_without_plain_numbers_is_refused(tmp_path: Path, change: Callable[..., torch.Tensor]) -> None:
    model, file = small_cnn(), tmp_path / "epoch-1.pt"
    grader = SimpleNamespace(model=model)
    torch.save(model.state_dict(), file)
    assert _load(file, grader)[1] == ""  # type: ignore[arg-type]
    torch.save({name: change(value) for name, value in model.state_dict().items()}, file)
    assert _load(file, grader)[0] is None  # type: ignore[arg-type]


def passed(learner: str = "Ada") -> Assessment:
    return Assessment(
        learner=learner, script="train.py", digest="00", task="glyphs", workers=2, target_accuracy=0.75, patience=2,
        within=100.0, epochs=EPOCHS, isolation=("Landlock 7",), passed=True, points=100.0,
    )  # fmt: skip


def test_a_certificate_is_accepted_until_it_is_changed(tmp_path: Path) -> None:
    for name in ("key", "other"):
        new_key(tmp_path / name)
    key, other, file = read_key(tmp_path / "key"), read_key(tmp_path / "other"), tmp_path / "certificate.json"
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    certify(passed(), key).save(file)
    assert is_genuine(Certificate.load(file), key) and not is_genuine(Certificate.load(file), other)
    for name, value in (("learner", "Eve"), ("points", 99.0), ("passed", False), ("within", float("inf"))):
        changed = json.loads(file.read_text())
        changed["statement"][name] = value
        assert not is_genuine(Certificate.from_json(json.dumps(changed)), key)
    with pytest.raises(AssessError, match="a submission that has passed"):
        certify(replace(passed(), passed=False), key)
    with pytest.raises(AssessError, match="no Landlock"):
        certify(replace(passed(), isolation=("own session",)), key)
    (tmp_path / "short").write_text("abc\n")
    with pytest.raises(AssessError, match="hexadecimal"):
        read_key(tmp_path / "short")
    with pytest.raises(AssessError, match="a file that exists"):
        new_key(tmp_path / "key")


def test_a_class_goes_on_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, results = tmp_path / "submissions", tmp_path / "results"
    (folder / "carol").mkdir(parents=True)
    (folder / "carol" / "train.py").write_text("print(1)\n")
    for name in ("alice", "=bob", "dan"):
        (folder / f"{name}.py").write_text(f"# {name}\n")
    seen: list[str] = []
    stop = True

    def grade_one(submission: Submission, settings: Settings, tell: object, *, data: Path) -> Assessment:
        seen.append(submission.learner)
        if submission.learner == "alice":
            raise JobError("killed by SIGKILL")
        if submission.learner == "carol" and stop:
            raise KeyboardInterrupt
        import hashlib

        return replace(passed(submission.learner), digest=hashlib.sha256(submission.text).hexdigest())

    monkeypatch.setattr(class_grading, "assess", grade_one)
    monkeypatch.setattr(class_grading, "write_data", lambda data, file: file.touch())
    with pytest.raises(KeyboardInterrupt):
        grade_class(folder, results, SETTINGS, lambda text: None, lambda row, made: None)
    assert [row.learner for row in Gradebook.load(results).rows] == ["=bob", "alice"]
    stop = False
    book = grade_class(folder, results, SETTINGS, lambda text: None, lambda row, made: None)
    assert seen == ["=bob", "alice", "carol", "alice", "carol", "dan"]  # what has a result is not graded again
    assert [(row.learner, row.passed) for row in book.rows] == [
        ("=bob", True), ("alice", False), ("carol", True), ("dan", True)
    ]  # fmt: skip
    lines = (results / "gradebook.csv").read_text().splitlines()
    assert lines[0] == "learner,passed,points,accuracy,seconds,reason"
    assert lines[1].startswith("'=bob,yes,100,0.8,30,") and "killed by SIGKILL" in lines[2]
