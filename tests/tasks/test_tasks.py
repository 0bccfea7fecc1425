"""The built-in tasks and their models: published sizes, shapes, and data that fit them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset

import rueda
from realdata import real_data
from rueda.data.length import count_examples
from rueda.errors import TaskError
from rueda.records.recipe.rules import CHOICES
from rueda.records.task_file import TaskFile
from rueda.tasks import Task
from rueda.tasks.datasets import glyphs as glyph_images
from rueda.tasks.datasets.text import generated_text
from rueda.tasks.models import lecture_cnn, resnet, small_cnn, wide_resnet
from rueda.tasks.naming import BUILTIN_TASKS, folder_name
from tinytask import tiny_task

SIZES = {  # model, input, trainable parameters, all state
    "lecture": (lecture_cnn, (2, 3, 32, 32), 482_442, 482_442),
    # Running statistics count in the published 490,378; torch also keeps a counter for each of the 9 layers.
    "lecture with batch norm": (lambda: lecture_cnn(batch_norm=True), (2, 3, 32, 32), 486_410, 490_378 + 9),
    "ResNet-8": (lambda: resnet(8), (2, 3, 32, 32), 78_042, None),
    "ResNet-18": (lambda: resnet(18), (2, 3, 32, 32), 11_173_962, None),
    "small CNN": (small_cnn, (2, 1, 28, 28), 16_938, 16_938),
    "narrow Wide ResNet": (lambda: wide_resnet(width=1), (2, 1, 28, 28), None, None),
}


@pytest.mark.parametrize(("build", "shape", "trainable", "state"), SIZES.values(), ids=SIZES)
def test_models(build, shape: tuple[int, ...], trainable: int | None, state: int | None) -> None:  # type: ignore[no-untyped-def]
    model = build()
    assert model(torch.zeros(shape)).shape == (2, 10)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert trainable is None or count == trainable
    assert state is None or sum(tensor.numel() for tensor in model.state_dict().values()) == state


def test_the_lecture_network_has_the_published_shapes() -> None:
    shapes = []
    model = lecture_cnn()
    for layer in model:  # type: ignore[union-attr]
        layer.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(output.shape[1:])))
    model(torch.zeros(1, 3, 32, 32))
    assert shapes == [
        (64, 16, 16), (64, 16, 16), (64, 7, 7), (256, 7, 7), (512, 4, 4), (512, 2, 2), (2048,), (10,),
    ]  # fmt: skip


@pytest.mark.parametrize("depth", [7, 9, 0, -4])
def test_no_such_resnet(depth: int) -> None:
    with pytest.raises(TaskError, match="depth: expected 18, or 6 n"):
        resnet(depth)


@pytest.mark.parametrize("name", BUILTIN_TASKS)
def test_every_task_takes_a_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.startswith(("fashion-mnist", "cifar10")):
        monkeypatch.setenv("RUEDA_DATA", str(real_data()))
    task = rueda.load_task(name)
    data: Any = task.load("train")
    assert len(task.load("test")) > 0

    def some(count: int) -> Any:
        return data.subset(slice(0, count)) if isinstance(data, rueda.Arrays) else Subset(data, range(count))

    few = replace(task, train=some(16), test=some(5))
    result = rueda.fit(few, task.recipe.change(batch=8, epochs=1), progress=False)
    assert result.row is not None and result.row.step == 2 and result.row.test_loss is not None


def test_the_language_model_learns_more_than_the_frequencies_of_bytes(tmp_path: Path) -> None:
    """The entropy of the bytes themselves is what a model that ignores the context can reach."""
    file = tmp_path / "a book.txt"
    file.write_bytes(bytes(generated_text("train", num_bytes=60_000)))
    task = rueda.load_task(f"text-transformer:{file}")
    test: Any = task.load("test")
    shares = test.targets.flatten().bincount().double() / test.targets.numel()
    entropy = float(-(shares[shares > 0].log() * shares[shares > 0]).sum())
    result = rueda.fit(task, task.recipe.change(epochs=6, model={"width": 32, "num_layers": 1}), progress=False)
    assert result.row is not None and result.row.test_loss is not None and result.row.test_loss < 0.95 * entropy


@pytest.mark.parametrize(
    ("name", "words"), [("text-transformer:nowhere.txt", "nowhere.txt"), ("text-transformer:", "text file")]
)
def test_a_file_that_is_not_there(name: str, words: str) -> None:
    with pytest.raises(rueda.RuedaError, match=words):
        rueda.load_task(name).load("train")


@pytest.fixture(scope="module")
def glyphs() -> Task:
    task = rueda.load_task("glyphs-cnn")
    return replace(task, train=glyph_images("train", num_examples=6000), test=glyph_images("test"))


@pytest.mark.parametrize("optimizer", CHOICES["optimizer"])
def test_every_optimizer_trains_at_its_default_rate(optimizer: str, glyphs: Task) -> None:
    """A user who types --set optimizer=NAME gets a training: half an epoch takes a fifth off the loss of guessing."""
    result = rueda.fit(glyphs, glyphs.recipe.with_settings([f"optimizer={optimizer}", "epochs=1"]), progress=False)
    assert result.status == "finished" and result.row is not None and result.row.test_loss is not None
    assert result.row.test_loss < 0.8 * math.log(10)


def test_the_linear_task_is_the_labs() -> None:
    data = rueda.load_task("linear").load("train")
    assert isinstance(data, rueda.Arrays)
    x, y = data.inputs.double(), data.targets.double()
    assert len(x) == 100 and x.min() >= 0 and x.max() <= 10
    design = torch.stack([x, torch.ones_like(x)], dim=1)
    slope, intercept = torch.linalg.lstsq(design, y.unsqueeze(1)).solution.flatten().tolist()
    best = ((design @ torch.tensor([slope, intercept]).double() - y) ** 2).mean()
    assert 9 < slope < 11 and -8 < intercept < 12 and 60 < best < 150  # sigma_y = 10
    hessian = 2 * design.T @ design / 100
    low, high = torch.linalg.eigvalsh(hessian).tolist()
    assert 0.3 < low < 0.7 and 55 < high < 80  # about 0.489 and 68.2


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class CountedStream(Stream):
    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("stream", [Stream, CountedStream])
def test_a_stream_is_taken_as_it_is(stream: type[Stream], split: str) -> None:
    task = replace(tiny_task(), **{split: stream()})
    assert isinstance(task.load(split), stream) and count_examples(task.load(split)) == 3


NOT_DATA: dict[str, tuple[Any, str]] = {
    "an iterator, which ends after one epoch": (iter([1, 2]), "got 'list_iterator'; wrap the tensors"),
    "a DataLoader": (DataLoader([1, 2]), "got 'DataLoader'; give the task its data set, and its collate_fn"),
    "a tensor": (torch.zeros(3), "got 'Tensor'; wrap the tensors"),
    "text": ("train.csv", "got 'str'"),
}


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(("data", "told"), NOT_DATA.values(), ids=NOT_DATA)
def test_what_is_no_data_set_is_refused_before_anything_is_trained(data: Any, told: str, split: str) -> None:
    task = replace(tiny_task(), **{split: data})
    expected = f"the {split} data of task clouds: expected rueda.Arrays, a torch Dataset or a stream, {told}"
    with pytest.raises(TaskError, match=expected):
        rueda.fit(task, task.recipe.change(workers=2), progress=False, rehearse=True)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("glyphs-cnn", "glyphs-cnn"), ("été v1.2+x", "été-v1.2+x"), ("../../../evil/[bold]x", "evil-bold-x"),
        ("/etc/passwd", "etc-passwd"), ("a/../b", "a-b"), ("..", "task"), ("", "task"), (".hidden", "hidden"),
        ("a\x00b\nc", "a-b-c"), ("C:\\x", "C-x"), ("x" * 300, "x" * 80),
    ],
)  # fmt: skip
def test_a_name_is_one_part_of_a_path(name: str, folder: str) -> None:
    assert folder_name(name) == folder


def test_a_users_file(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("WIDTH = 5\n")
    (tmp_path / "mine.py").write_text(
        "import torch, rueda\nfrom torch import nn\nfrom helper import WIDTH\n"
        "data = rueda.Arrays(torch.randn(20, 2), torch.randint(0, 3, (20,)))\n"
        "task = rueda.Task(name='mine', model=lambda: nn.Sequential(nn.Linear(2, WIDTH), nn.Linear(WIDTH, 3)),\n"
        "                  train=data, test=data)\n"
    )
    task = rueda.load_task(str(tmp_path / "mine.py"))
    assert task.file == TaskFile.read(tmp_path / "mine.py") and rueda.load_task("linear").file is None
    assert task.name == "mine" and task.build(task.recipe)(torch.zeros(1, 2)).shape == (1, 3)


ENDS = {
    "raise ValueError('two\\nlines')": "line 1, raised ValueError: two lines; the task file must run by itself",
    "x = 1\nassert not x": "line 2, raised AssertionError; the task file must run by itself",
    "import sys; sys.exit(0)": "line 1, raised SystemExit: 0; the task file must run by itself",
}


@pytest.mark.parametrize(("text", "message"), ENDS.items())
def test_a_file_that_ends_early(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(TaskError) as caught:
        rueda.load_task(str(tmp_path / "mine.py"))
    assert str(caught.value) == f"{tmp_path / 'mine.py'}, {message}"


def test_the_rate_of_glyphs_cnn_is_the_one_that_was_chosen_on_validation_images() -> None:
    """docs/log.md, the front page: 0.02 for one worker. README, demo and tutorial show its results."""
    recipe = rueda.load_task("glyphs-cnn").recipe
    assert (recipe.rate, recipe.batch, recipe.epochs) == (0.02, 64, 4)


def test_the_default_metric_needs_class_labels() -> None:
    """A regression without metric=None would be shown with an accuracy of 0 %."""
    prices = rueda.Arrays(torch.zeros(4, 8), torch.zeros(4))
    task = replace(tiny_task(), train=prices)
    with pytest.raises(TaskError, match="the targets are floating point; give metric=None"):
        task.load("train")
    assert replace(task, metric=None).load("train") is prices
    with pytest.raises(TaskError, match="give metric=None"):  # found at the first batch of any other data set
        task.correct(torch.zeros(4, 3), torch.zeros(4))


def test_a_factory_without_the_parameter_that_a_row_sets() -> None:
    task = replace(tiny_task(), model=lambda width=4: torch.nn.Linear(8, width))
    with pytest.raises(TaskError, match=r"needs a model factory with a parameter batch_norm=False, which that of"):
        task.build(task.recipe.change(model={"batch_norm": True}))
