"""Tasks on data of Hugging Face ``datasets`` and ``webdataset``: the same parameters on 1, 2 and 3 workers, resumed.

They are also measured, planned and studied.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from anystage import measured_and_planned, studied
from anytask import archive, archives, language, padded, sentence, tar_files, two_keys, vector
from anytraining import recipe_of, resumes_bit_for_bit, same_as_one_worker
from harness import workers
from rueda.tasks import Task
from rueda.world import current
from tinytask import parameters, rehearsal, run, training

datasets = pytest.importorskip("datasets", reason="needs Hugging Face datasets")
webdataset = pytest.importorskip("webdataset", reason="needs webdataset")

pytestmark = [  # webdataset leaves the archives that it has read open
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@contextmanager
def their_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield


def rows(first: int, num: int) -> Any:
    numbers = range(first, first + num)
    columns = {"features": [vector(i).tolist() for i in numbers], "label": [i % 3 for i in numbers]}
    return datasets.Dataset.from_dict(columns).with_format("torch")


def hugging_face() -> Task:
    """A data set that is read by index; its batches are dicts."""
    return replace(two_keys(), name="Hugging Face", train=lambda: rows(0, 48), test=lambda: rows(500, 13))


def texts(first: int, num: int, num_shards: int) -> Any:
    tokens = [sentence(i).tolist() for i in range(first, first + num)]
    return datasets.Dataset.from_dict({"tokens": tokens}).to_iterable_dataset(num_shards=num_shards)


def padded_rows(examples: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    return padded([torch.tensor(each["tokens"]) for each in examples])


def hugging_face_stream(num_shards: int = 1) -> Task:
    """Sentences of different lengths from a stream, which one shard cannot divide: it is divided by examples."""
    return replace(
        language(), name="Hugging Face stream", collate=padded_rows,
        train=lambda: texts(0, 48, num_shards), test=lambda: texts(500, 13, 1),
    )  # fmt: skip


def hugging_face_map() -> Task:
    """The same with the library's own transformation and shuffle buffer in the stream."""

    def shuffled() -> Any:
        return texts(0, 48, 1).map(lambda row: {"tokens": row["tokens"][::-1]}).shuffle(seed=4, buffer_size=10)

    return replace(hugging_face_stream(), name="Hugging Face map", train=shuffled)


def pipeline(*names: str) -> Callable[[], Any]:
    """Return a function that makes a pipeline of the features and labels of archives."""

    def make() -> Any:
        files = [str(archives() / name) for name in names]
        decoded = webdataset.WebDataset(files, shardshuffle=False).decode()
        return decoded.to_tuple("x.npy", "y.cls").map(lambda pair: (torch.from_numpy(pair[0]), pair[1]))

    return make


def web_dataset() -> Task:
    """One archive, which workers cannot divide: the pipeline is divided by examples."""
    whole = archives() / "whole.tar"
    archive(whole, range(48))
    return replace(tar_files(), name="webdataset", train=pipeline("whole.tar"), test=pipeline("test.tar"))


TASKS = {each.__name__: each for each in (hugging_face, hugging_face_stream, hugging_face_map, web_dataset)}
SHARDED: dict[str, Callable[[], Task]] = {
    "hugging_face_stream": lambda: hugging_face_stream(num_shards=6),
    "web_dataset": lambda: replace(tar_files(), train=pipeline(*(f"train-{n}.tar" for n in range(3)))),
}
"""streams with as many shards as three workers need: each worker reads its own"""


@pytest.mark.parametrize("name", TASKS)
@workers(2, framework="hugging-face")
def test_two_workers(name: str) -> None:
    with their_warnings():
        same_as_one_worker(TASKS[name]())


@pytest.mark.parametrize("name", TASKS)
@workers(3, framework="hugging-face")
def test_three_workers(name: str) -> None:
    with their_warnings():
        same_as_one_worker(TASKS[name]())


@pytest.mark.parametrize("name", TASKS)
@workers(1, framework="hugging-face")
def test_resuming_alone(name: str, tmp_path: Path) -> None:
    with their_warnings():
        resumes_bit_for_bit(TASKS[name](), tmp_path / "run")


@pytest.mark.parametrize("name", TASKS)
@workers(3, framework="hugging-face")
def test_resuming_on_three_workers(name: str, tmp_path: Path) -> None:
    with their_warnings():
        resumes_bit_for_bit(TASKS[name](), tmp_path / "run")


@pytest.mark.parametrize("name", TASKS)
@workers(2, framework="hugging-face")
def test_measured_and_planned(name: str) -> None:
    with their_warnings():
        measured_and_planned(TASKS[name]())


@pytest.mark.parametrize("name", TASKS)
@workers(1, framework="hugging-face")
def test_studied(name: str, tmp_path: Path) -> None:
    with their_warnings():
        studied(TASKS[name](), tmp_path / "study")


# Streams that divide themselves: which examples meet in a batch depends on the number of workers.


@pytest.mark.parametrize("name", SHARDED)
@workers(3, framework="hugging-face")
def test_streams_that_divide_themselves_are_rehearsed_and_resumed(name: str, tmp_path: Path) -> None:
    with their_warnings():
        task = SHARDED[name]()
        job = training(task, recipe_of(task, current().size))
        found = run(job)
        assert job.loader.divide == "shards"
        rehearsed = run(rehearsal(task, recipe_of(task, current().size)))
        assert (parameters(found.model) - parameters(rehearsed.model)).abs().max() < 1e-12
        resumes_bit_for_bit(task, tmp_path / "run")
