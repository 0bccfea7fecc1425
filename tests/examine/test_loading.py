"""From run folders and checkpoints of any program to models: the right weights, or one clear line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from rueda.errors import CheckpointError, ExamineError, RuedaError, RunError
from rueda.examine.job import examine_models
from rueda.examine.landscape.pictures import compute_pictures
from rueda.examine.loading import build_model, examples, load_model, load_path
from rueda.examine.request import ExamineRequest, LandscapeRequest
from rueda.examine.words import summary
from rueda.records.curvature import Curvature
from rueda.records.landscape import Landscape
from rueda.tasks import load_task
from rueda.tasks.task import Task
from rueda.train import fit
from rueda.world import World
from tinytask import clouds, network, parameters, tiny_task


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of the tiny task that kept its checkpoints: every 5 of 20 updates."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    recipe = tiny_task().recipe.change(keep=20, checkpoint_every=5, model={"batch_norm": True})
    fit(tiny_task(), recipe, folder=folder, progress=False)
    return folder


def test_a_run_folder(run: Path) -> None:
    trained = load_model(run, task=tiny_task())
    assert (trained.name, trained.step, trained.recipe.model) == ("tiny", 20, {"batch_norm": True})
    again = load_model(next((run / "checkpoints").glob("step-00000020.*")), task=tiny_task())
    assert torch.equal(parameters(trained.model), parameters(again.model))
    assert load_model(run, task=tiny_task(), checkpoint="10").step == 10
    assert load_model(run, task=tiny_task(), checkpoint="best").step in (10, 20)
    assert (trained.workers, trained.rehearsed) == (1, False)
    assert (again.workers, again.rehearsed) == (1, None)  # a checkpoint knows its recipe, not how it was run


def test_a_run_remembers_its_task_file(tmp_path: Path) -> None:
    file = tmp_path / "clouds.py"
    file.write_text("from tinytask import tiny_task\ntask = tiny_task()\n")
    fit(load_task(str(file)), load_task(str(file)).recipe.change(epochs=1), folder=tmp_path / "run", progress=False)
    trained = load_model(tmp_path / "run")
    again = load_model(next((tmp_path / "run" / "checkpoints").glob("step-*")))
    assert torch.equal(parameters(trained.model), parameters(again.model))
    file.unlink()
    with pytest.raises(RunError, match=r"its task file .*clouds\.py is no longer there") as caught:
        load_model(tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_a_rehearsal_is_told_by_the_runs_own_files(tmp_path: Path) -> None:
    folder = tmp_path / "lamb-seed0"
    recipe = tiny_task().recipe.change(workers=2, epochs=1)
    fit(tiny_task(), recipe, folder=folder, progress=False, rehearse=True)
    request = ExamineRequest(
        paths=(folder,), task="tiny", landscape=LandscapeRequest(points=2), hessian=True, density=False, num_examples=8,
        splits=("train",), progress=False,
    )  # fmt: skip
    examine_models(request, [load_model(folder, task=tiny_task())], World())
    place = request.result_folder()
    for found in (Landscape.load(place).members[0], Curvature.load(place).members[0]):
        assert (found.workers, found.rehearsed) == (2, True)
    assert summary(place)[0].startswith("lamb-seed0, 2 workers, rehearsed: surface of 2 x 2 points")


def test_its_loss_is_the_one_that_the_training_saw(run: Path) -> None:
    trained = load_model(run, task=tiny_task())
    assert trained.run is not None
    row = trained.run.rows("epoch")[-1]
    found = trained.objectives(num_examples=None)["test"].values()
    assert found.loss == pytest.approx(row.test_loss, rel=1e-5)
    assert found.error == pytest.approx(1 - row.test_accuracy, abs=1e-12)


def test_the_path_begins_at_the_initial_model(run: Path) -> None:
    trained = load_model(run, task=tiny_task(), checkpoint="15")
    steps, states = load_path(trained)
    assert steps == [0, 5, 10, 15]
    assert all(torch.equal(states[-1][name], value) for name, value in trained.model.state_dict().items())
    start = build_model(trained.task, trained.recipe)
    assert all(torch.equal(states[0][name], value) for name, value in start.state_dict().items())
    member = compute_pictures(
        trained, trained.objectives(num_examples=50), LandscapeRequest(pictures=("path",), points=3)
    )
    assert member.path is not None and member.path.trail is not None
    assert member.path.trail.rebuilt_start
    assert member.path.trail.steps == (0, 5, 10, 15) and member.path.batch_norm == "recalibrated"
    own = trained.objectives(num_examples=50)["train"].value()
    assert member.path.trail.loss[-1] == pytest.approx(own, rel=1e-6)


WRAPPERS = {
    "alone": lambda state: state,
    "under model": lambda state: {"model": state, "epoch": 3},
    "of DDP": lambda state: {"state_dict": {f"module.{name}": value for name, value in state.items()}},
    "compiled": lambda state: {f"_orig_mod.{name}": value for name, value in state.items()},
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_checkpoints_of_other_programs(wrap: Any, tmp_path: Path) -> None:
    torch.manual_seed(7)
    model = network(batch_norm=True)
    torch.save(wrap(model.state_dict()), tmp_path / "mine.pt")
    trained = load_model(tmp_path / "mine.pt", task=tiny_task(), settings=["model.batch_norm=true"])
    assert (trained.name, trained.step, trained.run) == ("mine", None, None)
    assert torch.equal(parameters(trained.model), parameters(model))


def test_examples_are_spread_over_the_data_and_a_data_set_will_do() -> None:
    inputs, targets = torch.arange(10.0)[:, None], torch.arange(10)
    task = Task(name="t", model=network, train=TensorDataset(inputs, targets), test=clouds(7, 0))
    found, labels = examples(task, "train", 5, torch.float32)
    assert isinstance(found, torch.Tensor)
    assert found.flatten().tolist() == labels.tolist() == [0, 2, 4, 6, 8]
    assert len(examples(task, "test", 100, torch.float32)[1]) == 7


def broken(folder: Path, kind: str) -> Path:
    file = folder / "file.pt"
    state = network().state_dict()
    if kind == "another model":
        torch.save(network(batch_norm=True).state_dict(), file)
    elif kind == "another width":
        torch.save({name: torch.zeros(3, 3) for name in state}, file)
    elif kind == "no tensors":
        torch.save({"epoch": 3}, file)
    elif kind == "a tensor":
        torch.save(torch.zeros(3), file)
    elif kind == "a whole model":
        torch.save(network(), file)
    elif kind == "no checkpoint":
        file.write_bytes(b"\x80hello")
    return file


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("another model", "belongs to another model than the one that task clouds builds"),
        ("another width", r"0.weight has shape \[3, 3\] instead of \[16, 8\] and 3 more"),
        ("no tensors", "expected a state dictionary of tensors, got 'epoch: int'"),
        ("a tensor", "expected a state dictionary, got 'Tensor'"),
        ("a whole model", "cannot be loaded as tensors alone"),
        ("no checkpoint", "cannot be loaded as tensors alone"),
        ("nothing", "expected a run folder or a checkpoint file"),
    ],
)
def test_bad_checkpoints_are_one_line(kind: str, line: str, tmp_path: Path) -> None:
    with pytest.raises(RuedaError, match=line) as error:
        load_model(broken(tmp_path, kind), task=tiny_task())
    assert isinstance(error.value, (CheckpointError, ExamineError))
    assert len(str(error.value).splitlines()) == 1


def test_other_bad_input(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ExamineError, match=r"expected a built-in one, got 'clouds'; name its file: --task FILE.py"):
        load_model(run)
    torch.save(network().state_dict(), tmp_path / "mine.pt")
    with pytest.raises(ExamineError, match="expected a task that it belongs to"):
        load_model(tmp_path / "mine.pt")
    (tmp_path / "environment.json").write_text("{}")  # of another program: it does not make the file a run's checkpoint
    (tmp_path / "weights").mkdir()
    torch.save(network().state_dict(), tmp_path / "weights" / "mine.pt")
    with pytest.raises(ExamineError, match="expected a task that it belongs to"):
        load_model(tmp_path / "weights" / "mine.pt")
    with pytest.raises(ExamineError, match=r"one of its steps \(5, 10, 15, 20\), got '7'"):
        load_model(run, task=tiny_task(), checkpoint="7")
    with pytest.raises(ExamineError, match="it has none"):
        load_model(tmp_path, task=tiny_task())
    with pytest.raises(ExamineError, match="expected a run folder with its checkpoints, got 'mine'"):
        load_path(load_model(tmp_path / "mine.pt", task=tiny_task()))
    with pytest.raises(ExamineError, match="examples: expected 1 or more, got 0"):
        examples(tiny_task(), "train", 0, torch.float32)
    for wrong, line in (({"points": 1}, "points"), ({"span": 0.0}, "span"), ({"pictures": ("moon",)}, "pictures"),
                        ({"batch_norm": "no"}, "batch_norm"), ({"normalise": "no"}, "normalise")):  # fmt: skip
        with pytest.raises(ExamineError, match=f"{line}: expected"):
            LandscapeRequest(**wrong)  # type: ignore[arg-type]
