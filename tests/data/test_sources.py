"""Sources of examples: folders of images, files of tokens, tar archives."""

from __future__ import annotations

import io
import json
import pickle
import sys
import tarfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rueda.data import EvalLoader, ImageFolder, Loader, TarFiles, TokenFile
from rueda.data.tar_index import members
from rueda.errors import DataError, MissingExtra
from shards import add, write_shards

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")


@dataclass
class Place:
    rank: int = 0
    size: int = 1


# Tar archives.


LONG = "very/" * 60 + "long"


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_the_index_is_that_of_the_standard_library(tmp_path: Path, format: int) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=format) as archive:
        archive.addfile(tarfile.TarInfo("empty.txt"))
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        add(archive, "x/" * 60 + "half.txt", b"half" * 1000)
        if format != tarfile.USTAR_FORMAT:
            add(archive, LONG + ".txt", b"long")
            add(archive, "ü" * 80 + ".txt", b"letters")
        add(archive, "big.bin", bytes(3_000_000))
        add(archive, "last.txt", b"x" * 512)
    with tarfile.open(path) as archive:
        expected = [(each.name, each.offset_data, each.size) for each in archive if each.isfile()]
    assert [tuple(each) for each in members(str(path))] == expected


@pytest.mark.parametrize("mix", [None, 1, 2, 9])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_example_of_tar_archives_once(tmp_path: Path, size: int, mix: int | None) -> None:
    lengths_and_labels: Any = {"fields": ("bin", "cls"), "transform": lambda parts: (len(parts[0]), parts[1])}
    data = TarFiles(write_shards(tmp_path), mix=mix, **lengths_and_labels)
    assert len(data) == 34 and data[5] == (5 * 37, 5)
    orders = []
    loaders = [Loader(data, 3, world=Place(rank, size), remainder="short") for rank in range(size)]
    for _ in range(2):
        batches = [list(loader) for loader in loaders]
        assert all(torch.equal(lengths, 37 * labels) for each in batches for lengths, labels in each)
        orders.append([label for each in batches for _, labels in each for label in labels.tolist()])
        assert set(orders[-1]) == set(range(34)) and len(orders[-1]) == 34 + -34 % size
    assert orders[0] != orders[1]
    counted = Counter[int]()
    for rank in range(size):
        for _, labels, weights in EvalLoader(data, 4, world=Place(rank, size)):
            for label, weight in zip(labels.tolist(), weights.tolist(), strict=True):
                counted[label] += int(weight)
    assert counted == Counter(range(34))


def test_archives_are_mixed_a_few_at_a_time(tmp_path: Path) -> None:
    data = TarFiles(write_shards(tmp_path), mix=2)
    bounds = np.cumsum([10, 3, 14, 7])
    for epoch in range(3):
        order = data.order(0, epoch)
        shard = np.searchsorted(bounds, order, side="right")
        changes = [set(shard[: i + 1]) & set(shard[i + 1 :]) for i in range(33)]
        assert sorted(order) == list(range(34))
        assert min(len(each) for each in changes) == 0, "the first two archives end before the others begin"
        assert max(len(each) for each in changes) == 2


@pytest.mark.parametrize("stop", [0, 1, 4])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_tar_archives_are_resumed_at_any_step(tmp_path: Path, stop: int, num_workers: int) -> None:
    data = TarFiles(write_shards(tmp_path), fields=["cls"], mix=2)
    options: dict[str, Any] = {"world": Place(1, 2), "num_workers": num_workers}
    first = Loader(data, 3, **options)
    for _ in range(stop):
        first.next_batch()
    state = first.state_dict()
    expected = [labels.tolist() for (labels,) in first] + [labels.tolist() for (labels,) in first]
    again = Loader(pickle.loads(pickle.dumps(data)), 3, **options)
    again.load_state_dict(state)
    assert [labels.tolist() for (labels,) in again] + [labels.tolist() for (labels,) in again] == expected
    first.close()
    again.close()


def test_members_are_decoded_by_their_endings(tmp_path: Path) -> None:
    image, array = io.BytesIO(), io.BytesIO()
    pillow = pytest.importorskip("PIL.Image", reason="needs Pillow")
    pillow.fromarray(np.full((4, 5, 3), 7, np.uint8)).save(image, "PNG")
    np.save(array, np.arange(3))
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        add(archive, "x.png", image.getvalue())
        add(archive, "x.seg.npy", array.getvalue())
        add(archive, "x.json", json.dumps({"a": [1]}).encode())
        add(archive, "x.TXT", "grün".encode())
        add(archive, "x.raw", b"\0\1")
        add(archive, "readme", b"no example")
    [example] = [TarFiles(tmp_path / "a.tar")[0]]
    assert example["__key__"] == "x" and example["txt"] == "grün" and example["raw"] == b"\0\1"
    assert torch.equal(example["png"], torch.full((3, 4, 5), 7, dtype=torch.uint8))
    assert example["seg.npy"].tolist() == [0, 1, 2] and example["json"] == {"a": [1]}
    assert TarFiles(tmp_path / "a.tar", fields=["raw"], decode=lambda name, data: (name, data))[0] == (
        ("raw", b"\0\1"),
    )


def test_more_archives_than_may_be_open(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, (1,) * 130)
    data = TarFiles(paths, fields=["cls"])
    assert [data[i][0] for i in (*range(130), 0, 129)] == [*range(130), 0, 129]


def truncated(folder: Path) -> str:
    [path] = write_shards(folder, (5,))
    Path(path).write_bytes(Path(path).read_bytes()[:3000])
    return path


def compressed(folder: Path) -> str:
    with tarfile.open(folder / "a.tar.gz", "w:gz") as archive:
        add(archive, "a.txt", b"a" * 9000)
    return str(folder / "a.tar.gz")


def without_examples(folder: Path) -> str:
    with tarfile.open(folder / "a.tar", "w") as archive:
        add(archive, "readme", b"")
    return str(folder / "a.tar")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: TarFiles(truncated(folder)), "uncompressed tar archive, got 'no header at byte"),
        (lambda folder: TarFiles(compressed(folder)), "decompress it"),
        (lambda folder: TarFiles(without_examples(folder)), r"members such as 0001.jpg"),
        (lambda folder: TarFiles(folder / "none.tar"), "no such file"),
        (lambda folder: TarFiles(folder / "*.tar"), "check the pattern"),
        (lambda folder: TarFiles(write_shards(folder), mix=0), "1 or more archives"),
        (lambda folder: TarFiles(write_shards(folder), fields=["jpg"])[0], r"expected a member .jpg"),
        (lambda folder: TokenFile(folder / "none.bin", 4), "no such file"),
        (lambda folder: TokenFile(tokens(folder, "a.bin", np.zeros(4, np.uint16)), 4), "at least 5 tokens"),
        (lambda folder: TokenFile(tokens(folder, "a.bin", np.zeros(5, np.uint8)), 2), "whole uint16 tokens"),
        (lambda folder: TokenFile(tokens(folder, "a.npy", np.zeros((5, 2), np.int64)), 2), "one row of"),
        (lambda folder: TokenFile(tokens(folder, "a.npy", np.zeros(5)), 2), "one row of"),
        (lambda folder: TokenFile(tokens(folder, "a.txt", np.zeros(0, np.uint8)), 2), "at least 3 tokens"),
        (lambda folder: TokenFile(tokens(folder, "a.bin", np.zeros(5, np.uint16)), 0), "1 or more tokens"),
        (lambda folder: TokenFile(tokens(folder, "a.bin", np.zeros(5, np.uint16)), 2, dtype="bf16"), "uint8 or"),
    ],
)
def test_mistakes_are_refused(tmp_path: Path, make: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make(tmp_path)


# Tokens.


def tokens(folder: Path, name: str, values: Any) -> Path:
    if name.endswith(".npy"):
        np.save(folder / name, values)
    else:
        values.tofile(folder / name)
    return folder / name


@pytest.mark.parametrize(
    ("name", "kind", "dtype"),
    [
        ("a.bin", np.uint16, None), ("a.bin", np.uint32, "uint32"), ("a.npy", np.uint16, None),
        ("a.npy", np.int64, None), ("a.txt", np.uint8, None), ("a.i32", np.int32, "int32"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 2, 3])
def test_windows_have_every_token_once_as_a_target(
    tmp_path: Path, name: str, kind: Any, dtype: str | None, size: int
) -> None:
    data = TokenFile(tokens(tmp_path, name, np.arange(97, dtype=kind)), 4, dtype=dtype)
    assert len(data) == 24 and data.num_tokens == 97
    seen = []
    for rank in range(size):
        for inputs, targets in Loader(pickle.loads(pickle.dumps(data)), 2, world=Place(rank, size)):
            assert inputs.dtype == torch.int64 and inputs.shape == (2, 4)
            assert torch.equal(inputs + 1, targets)
            seen += targets.flatten().tolist()
    assert sorted(seen) == list(range(1, 97))


def test_several_files_are_one_data_set(tmp_path: Path) -> None:
    parts = [tokens(tmp_path, f"{n}.bin", np.arange(n * 100, n * 100 + length, dtype=np.uint16))
             for n, length in ((1, 11), (2, 3), (3, 9))]  # fmt: skip
    data = TokenFile(parts, 4)
    assert [inputs.tolist() for inputs, _ in (data[i] for i in range(len(data)))] == [
        [100, 101, 102, 103], [104, 105, 106, 107], [300, 301, 302, 303], [304, 305, 306, 307],
    ]  # fmt: skip
    with pytest.raises(IndexError):
        data[4]


# Images.


def pictures(folder: Path) -> Path:
    pillow = pytest.importorskip("PIL.Image", reason="needs Pillow")
    for number, name in enumerate(("cat", "dog")):
        (folder / name / "deep").mkdir(parents=True)
        for each, (width, height) in enumerate(((40, 20), (16, 30), (8, 8))):
            picture = pillow.fromarray(np.full((height, width, 3), 100 * number + each, np.uint8))
            picture.save(folder / name / ("deep" if each == 1 else ".") / f"{each}.png")
        (folder / name / "notes.txt").write_text("no image")
    return folder


def test_a_folder_of_images(tmp_path: Path) -> None:
    data = ImageFolder(pictures(tmp_path), size=16)
    assert data.names == ("cat", "dog") and len(data) == 6 and data.labels.tolist() == [0, 0, 0, 1, 1, 1]
    seen = []
    for rank in range(2):
        for images, labels in Loader(data, 1, world=Place(rank, 2), num_workers=rank):
            assert images.shape == (1, 3, 16, 16) and images.dtype == torch.float32
            seen.append((round(float(images.mean()) * 255), int(labels)))
    assert sorted(seen) == [(0, 0), (1, 0), (2, 0), (100, 1), (101, 1), (102, 1)]
    own = ImageFolder(tmp_path, transform=lambda image: image.size)
    assert own[0] == ((40, 20), 0)


def test_a_folder_without_images_gets_a_line(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image", reason="needs Pillow")
    with pytest.raises(DataError, match="got 'no folders'"):
        ImageFolder(tmp_path)
    (tmp_path / "cat").mkdir()
    with pytest.raises(DataError, match="1 folders without images"):
        ImageFolder(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        ImageFolder(tmp_path / "none")
    with pytest.raises(DataError, match="1 or more pixels"):
        ImageFolder(tmp_path, size=0)
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "1.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="cat: expected at least one image"):
        ImageFolder(tmp_path)
    (tmp_path / "cat").rmdir()
    with pytest.raises(DataError, match=r"1.png: expected an image"):
        ImageFolder(tmp_path)[0]


def test_without_pillow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"rueda\[images\]"):
        ImageFolder(tmp_path)
