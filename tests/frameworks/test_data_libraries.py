"""Pipelines of ``webdataset`` and data sets of Hugging Face ``datasets``, as they are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import workers
from rueda.data import EvalLoader, Loader, TarFiles
from rueda.data.iterable_loader import IterableLoader
from rueda.errors import DataError
from rueda.world import World, current
from shards import write_shards

pytestmark = [  # webdataset leaves the archives that it has read open
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@dataclass
class Place:
    rank: int = 0
    size: int = 1


def labels_of(loader: Any) -> list[list[int]]:
    return [batch[-1].tolist() for batch in loader]


def pipeline(paths: list[str]) -> Any:
    webdataset = pytest.importorskip("webdataset", reason="needs webdataset")
    return webdataset.WebDataset(paths, shardshuffle=False).decode().to_tuple("cls").map(lambda each: (int(each[0]),))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_webdataset_pipeline_is_divided(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its four archives among one, two and four workers, by examples among three."""
    paths = write_shards(tmp_path)
    seen: Counter[int] = Counter()
    for rank in range(size):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(size))
        loader = Loader(pipeline(paths), 3, world=Place(rank, size), remainder="short", seed=1)
        assert isinstance(loader, IterableLoader)
        seen.update(label for batch in labels_of(loader) for label in batch)
        assert loader.divide == ("examples" if size in (1, 3) else "shards")
    assert set(seen) == set(range(34)) and seen.total() == 34 + (-34 % 3 if size == 3 else 0)


@pytest.mark.parametrize("size", [1, 2])
def test_a_webdataset_pipeline_is_resumed(tmp_path: Path, size: int) -> None:
    paths = write_shards(tmp_path)
    for stop in (1, 3):
        first = Loader(pipeline(paths), 3, world=Place(0, size))
        for _ in range(stop):
            first.next_batch()
        state = first.state_dict()
        expected = labels_of(first)
        again = Loader(pipeline(paths), 3, world=Place(0, size))
        again.load_state_dict(state)
        assert labels_of(again) == expected


def test_own_archives_have_the_examples_of_webdataset(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset", reason="needs webdataset")
    paths = write_shards(tmp_path)
    theirs = [(each["__key__"], each["bin"], each["cls"]) for each in webdataset.WebDataset(paths, shardshuffle=False)]
    data = TarFiles(paths, decode=lambda name, content: content)
    assert [(data[i]["__key__"], data[i]["bin"], data[i]["cls"]) for i in range(len(data))] == theirs


def rows(num: int = 47) -> Any:
    datasets = pytest.importorskip("datasets", reason="needs Hugging Face datasets")
    return datasets.Dataset.from_dict({"x": [[float(i)] * 3 for i in range(num)], "y": list(range(num))})


def labels(loader: Any) -> list[list[int]]:
    return [batch["y"].tolist() for batch in loader]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_hugging_face_data_set_is_read_by_index(size: int) -> None:
    data = rows().with_format("torch")
    seen: list[int] = []
    for rank in range(size):
        for batch in Loader(data, 4, world=Place(rank, size), remainder="short"):
            assert torch.equal(batch["x"][:, 0], batch["y"].float())
            seen += batch["y"].tolist()
    assert set(seen) == set(range(47)) and len(seen) == 47 + -47 % size


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("num_shards", [1, 6])
def test_a_hugging_face_stream_is_divided(size: int, num_shards: int) -> None:
    seen: list[int] = []
    for rank in range(size):
        data = rows().to_iterable_dataset(num_shards=num_shards).with_format("torch")
        loader = Loader(data, 4, world=Place(rank, size), remainder="short")
        assert isinstance(loader, IterableLoader)
        seen += [label for batch in labels(loader) for label in batch]
        assert loader.divide == ("shards" if size > 1 and num_shards == 6 else "examples")
    assert set(seen) == set(range(47)) and len(seen) <= 47 + size - 1
    counted = Counter[int]()
    for rank in range(size):
        data = rows().to_iterable_dataset(num_shards=num_shards).with_format("torch")
        for batch, weights in EvalLoader(data, 5, world=Place(rank, size)):
            for label, weight in zip(batch["y"].tolist(), weights.tolist(), strict=True):
                counted[label] += int(weight)
    assert counted == Counter(range(47))


@pytest.mark.parametrize("own_shuffle", [False, True])
@pytest.mark.parametrize("stop", [1, 70, 120])
def test_a_hugging_face_stream_is_resumed(stop: int, own_shuffle: bool) -> None:
    def make() -> Any:
        data = rows(1000).to_iterable_dataset(num_shards=1)
        data = data.shuffle(seed=4, buffer_size=20) if own_shuffle else data
        return Loader(data, 4, world=Place(1, 2), shuffle=50)

    whole = make()
    expected = labels(whole) + labels(whole)
    first = make()
    got = [first.next_batch()["y"].tolist() for _ in range(stop)]
    state = first.state_dict()
    assert (state["source"] is None) == own_shuffle, "its own buffer is not part of its state"
    again = make()
    again.load_state_dict(state)
    assert got + labels(again) + labels(again) == expected
    assert expected[:125] != expected[125:]


def test_a_stream_that_is_divided_already_is_refused() -> None:
    from torch.utils.data import DataLoader

    data = rows().to_iterable_dataset()
    distributed = pytest.importorskip("datasets.distributed", reason="needs Hugging Face datasets")
    half = distributed.split_dataset_by_node(data, 0, 2)
    with pytest.raises(DataError, match="leave split_dataset_by_node out"):
        World().loader(DataLoader(half, 4))
    loader = Loader(half, 4, world=Place(0, 2), divide="ranks", remainder="short")
    assert len({label for batch in labels(loader) for label in batch}) in (23, 24)


@workers(2, before=lambda: pytest.importorskip("datasets", reason="needs Hugging Face datasets"))
def test_two_workers_share_a_hugging_face_stream() -> None:
    world = current()
    for num_shards in (1, 4):
        data = rows().to_iterable_dataset(num_shards=num_shards)
        mine = []
        for batch in Loader(data, 4, remainder="short"):
            mine += batch["y"].tolist()
            world.barrier()
        assert {label for each in world.all_gather_object(mine) for label in each} == set(range(47))
