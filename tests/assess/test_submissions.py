"""The reference solution passes; every way to cheat fails for its own reason, and for no other condition."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rueda.assess import assessing, evaluation
from rueda.assess.assessing import assess
from rueda.assess.material import DATA, material, write_data
from rueda.assess.settings import MOST_BYTES, Settings, Submission, TaskData
from rueda.records.assessment import FAILED, Assessment

SUBMISSIONS = Path(__file__).parent / "submissions"
SMALL = TaskData(num_train=2400, num_validation=400, num_held_out=1000)
CONDITIONS = {"own-model", "task-data", "validation", "untouched"}

# Each submission with the criterion that it fails, and a part of the reason.
CHEATS = {
    "serial": ("distributed", "ranks 0 and 1 read the same examples in the same order"),
    "naive": ("accuracy", "unscaled-rate: each rank has batches of 512"),
    "made_up": ("accuracy", "the script has printed 99.2\N{NO-BREAK SPACE}%, but only what the grader computes counts"),
    "validation_set": ("validation", "of the training examples are validation examples"),
    "other_data": ("task-data", "training examples are not the task's, not even changed ones"),
    "patches": ("untouched", "rueda.check.audit.watch.steps.StepWatch._end was replaced"),
    "another_model": ("own-model", "epoch-1.pt: its weights are not those after any step of this training"),
    "sleeps": ("time", "idle at train.py:"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / DATA
    write_data(SMALL, file)
    return file


def graded(name: str, data: Path, *, within: float = 600.0) -> Assessment:
    text = material({"serial": "train"}.get(name, name)) if name in ("serial", "reference") else b""
    text = text or (SUBMISSIONS / f"{name}.py").read_bytes()
    settings = Settings(data=SMALL, workers=2, target_accuracy=0.5, within=within)
    return assess(Submission(learner=name, file=Path("train.py"), text=text), settings, data=data)


def test_the_reference_solution_passes(data: Path) -> None:
    found = graded("reference", data)
    assert found.passed and found.points == 100, found.reasons
    assert found.isolation[0].startswith("own session")
    assert "this is the reference solution itself" in found.notes
    assert [one.epoch for one in found.epochs] == [1, 2, 3, 4]
    assert all(one.examples == 2368 and not one.note for one in found.epochs)


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_fails_for_its_own_reason(name: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assessing, "evaluate_apart", evaluation.evaluate)  # in this process, which has torch already
    found = graded(name, data, within=6.0 if name == "sleeps" else 600.0)
    wanted, phrase = CHEATS[name]
    reasons = {one.name: one.reason for one in found.criteria if one.status == FAILED}
    assert not found.passed
    assert phrase in reasons.get(wanted, ""), reasons
    assert reasons.keys() & CONDITIONS == {wanted} & CONDITIONS, reasons
    assert found.points == 0 or wanted not in CONDITIONS


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a script another user and no network")
def test_a_script_cannot_reach_what_is_not_its_own(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assessing, "evaluate_apart", evaluation.evaluate)
    found = graded("reaches", data)
    reasons = {one.name: one.reason for one in found.criteria if one.status == FAILED}
    assert "could do: nothing" in reasons["runs"], reasons
    assert any(one.startswith("user ") for one in found.isolation)
    assert "no network" in found.isolation


def test_a_script_that_could_hold_a_model_is_not_run() -> None:
    text = b"#" * (MOST_BYTES + 1)
    found = assess(Submission(learner="x", file=Path("train.py"), text=text), Settings(data=SMALL))
    assert found.reasons == [
        "own-model: the script has 32,769 bytes, more than 32,768: a trained model could be hidden in it"
    ]
    text = b"weights = " + repr(os.urandom(5000).hex()).encode()
    found = assess(Submission(learner="x", file=Path("train.py"), text=text), Settings(data=SMALL))
    assert "bytes when compressed, more than 4,096" in found.reasons[0] and found.points == 0
