"""The published sets in small: the same code on tiny files, whose checksums are put in place of the published ones."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness import workers
from realdata import real_data
from rueda.errors import DataError
from rueda.files.cache import cache_folder
from rueda.tasks import datasets
from rueda.tasks.datasets import cifar10, fashion_mnist

RANDOM = np.random.default_rng(0)
IMAGES = {split: RANDOM.integers(0, 256, (num, 28, 28), dtype=np.uint8) for split, num in (("train", 6), ("t10k", 3))}
LABELS = {split: (np.arange(len(images)) % 10).astype(np.uint8) for split, images in IMAGES.items()}
RECORDS = {file: RANDOM.integers(0, 10, (4, 3073), dtype=np.uint8) for file in cifar10.Cifar10.checksums}


def idx(values: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


PLAIN = {
    "fashion-mnist": {
        **{f"{split}-images-idx3-ubyte": idx(IMAGES[split]) for split in IMAGES},
        **{f"{split}-labels-idx1-ubyte": idx(LABELS[split]) for split in IMAGES},
    },
    "cifar-10": {file: records.tobytes() for file, records in RECORDS.items()},
}
NAMES = list(PLAIN)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Make the sets small, and the world around them empty."""
    make_small(monkeypatch.setattr)
    monkeypatch.delenv("RUEDA_DATA", raising=False)
    monkeypatch.setenv("RUEDA_CACHE", str(tmp_path / "cache"))


def make_small(put: Callable[..., None]) -> None:
    for kind in (fashion_mnist.FashionMnist, cifar10.Cifar10):
        sums = {file: hashlib.sha256(content).hexdigest() for file, content in PLAIN[kind.name].items()}
        put(kind, "checksums", sums)
        put(kind, "system_folders", ())
        put(kind, "addresses", ("http://127.0.0.1:9/nobody.tar.gz",))


def write(name: str, folder: Path) -> Path:
    """Write a set in the layout in which it is published."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in PLAIN[name].items():
        if name == "fashion-mnist":
            (folder / f"{file}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / file).write_bytes(content)
    return folder


def check(name: str, train: Any, test: Any) -> None:
    if name == "fashion-mnist":
        assert np.array_equal(train.inputs[:, 0].numpy(), IMAGES["train"])
        assert test.targets.tolist() == LABELS["t10k"].tolist()
    else:
        records = np.concatenate([RECORDS[f"data_batch_{number}.bin"] for number in range(1, 6)])
        assert np.array_equal(train.inputs.flatten(1).numpy(), records[:, 1:])
        assert train.targets.tolist() == records[:, 0].tolist()
        assert test.targets.tolist() == RECORDS["test_batch.bin"][:, 0].tolist()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", ["directory", "above", "RUEDA_DATA", "second", "cache"])
def test_a_set_is_found_wherever_it_lies(
    name: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / ("cache" if place == "cache" else "data")
    folder = write(name, base / name)
    directory = {"directory": folder, "above": base}.get(place)
    if place in ("RUEDA_DATA", "second"):
        empty = tmp_path / "empty"
        monkeypatch.setenv("RUEDA_DATA", str(base) if place == "RUEDA_DATA" else f"{empty}{os.pathsep}{base}")
    check(name, datasets.load(name, "train", directory), datasets.load(name, "test", directory))
    if directory is None:
        assert datasets.get(name) == folder


@pytest.mark.parametrize("name", NAMES)
def test_get_from_a_folder_keeps_the_decoded_files(name: str, tmp_path: Path) -> None:
    folder = datasets.get(name, write(name, tmp_path / "here"))
    assert folder == tmp_path / "cache" / name
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == PLAIN[name]
    check(name, datasets.load(name), datasets.load(name, "test"))


def write_python_layout(folder: Path, protocol: int = 2) -> None:
    folder.mkdir()
    for file, records in RECORDS.items():
        batch = {
            b"batch_label": b"a batch",
            b"labels": records[:, 0].tolist(),
            b"data": np.ascontiguousarray(records[:, 1:]),
            b"filenames": [b"a.png"] * len(records),
        }
        (folder / file).with_suffix("").write_bytes(pickle.dumps(batch, protocol=protocol))


@pytest.mark.parametrize("protocol", [0, 2])
def test_cifar_in_the_python_layout_is_the_same(tmp_path: Path, protocol: int) -> None:
    write_python_layout(tmp_path / "cifar-10-batches-py", protocol)
    check("cifar-10", datasets.load("cifar-10", directory=tmp_path), datasets.load("cifar-10", "test", tmp_path))


def test_python_2_wrote_the_published_layout_with_other_names(tmp_path: Path) -> None:
    """Python 2 and old numpy: str for bytes, numpy.core for numpy._core; written out by hand."""
    records = RECORDS["test_batch.bin"]
    pixels = records[:, 1:].tobytes()
    content = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87R"
        + b"(K\x01K\x04M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN"
        + b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<I", len(pixels))
        + pixels
        + b"tbU\x06labels](K"
        + b"K".join(bytes([label]) for label in records[:, 0])
        + b"eu."
    )
    labels, images = cifar10.read_batch(content, tmp_path)
    assert labels == records[:, 0].tolist()
    assert images.tobytes() == pixels


class Harmful:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harm",)


@pytest.mark.parametrize("where", ["whole", "labels", "data"])
def test_a_pickle_cannot_run_anything(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_python_layout(tmp_path / "set")
    batch: Any = {b"labels": [0], b"data": np.zeros((1, 3072), np.uint8)}
    batch = Harmful() if where == "whole" else {**batch, where.encode(): Harmful()}
    (tmp_path / "set" / "data_batch_1").write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(DataError, match=r"it asks for posix\.mkdir"):
        datasets.load("cifar-10", directory=tmp_path / "set")
    assert not (tmp_path / "harm").exists()


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    changed = {
        "truncated": content[: len(content) // 2],
        "emptied": b"",
        "one bit": content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
        "longer": content + b"x",
        "zeros": bytes(len(content)),
    }
    path.write_bytes(changed[how])


@pytest.mark.parametrize(
    ("name", "how"),
    [(name, how) for name in (*NAMES, "python") for how in ("truncated", "emptied", "one bit", "zeros")]
    + [(name, "longer") for name in NAMES],  # a pickle ends where it says; what follows is never read
)
def test_a_damaged_file_is_noticed_and_never_kept(name: str, how: str, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    if name == "python":
        name = "cifar-10"
        write_python_layout(folder)
    else:
        write(name, folder)
    damage(sorted(folder.iterdir())[-1], how)
    with pytest.raises(DataError) as caught:
        datasets.get(name, folder)
    assert "\n" not in str(caught.value)
    assert f"rueda data get {name}" in str(caught.value)
    with pytest.raises(DataError):
        for split in ("train", "test"):
            datasets.load(name, split, folder)
    kept = tmp_path / "cache" / name
    for path in kept.iterdir() if kept.exists() else ():
        assert path.read_bytes() == PLAIN[name][path.name], "what is kept is whole"


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    folder = write(name, tmp_path / "set")
    sorted(folder.iterdir())[0].unlink()
    missing = sorted(PLAIN[name])[0]
    with pytest.raises(DataError, match=missing):
        datasets.load(name, directory=folder)
    with pytest.raises(DataError, match="no such folder"):
        datasets.load(name, directory=tmp_path / "elsewhere")


def test_a_wrong_label_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it published so, with its checksum: the label itself is checked as well."""
    wrong = RECORDS["test_batch.bin"].copy()
    wrong[2, 0] = 10
    folder = write("cifar-10", tmp_path / "set")
    (folder / "test_batch.bin").write_bytes(wrong.tobytes())
    sums = {**cifar10.Cifar10.checksums, "test_batch.bin": hashlib.sha256(wrong.tobytes()).hexdigest()}
    monkeypatch.setattr(cifar10.Cifar10, "checksums", sums)
    with pytest.raises(DataError, match="labels: expected from 0 to 9, got 10"):
        datasets.load("cifar-10", "test", folder)
    batch = {"labels": [1, 11], "data": np.zeros((2, 3072), np.uint8)}
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(DataError, match="got 11"):
        cifar10.Cifar10().decode(tmp_path / "data_batch_1")


@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_leaves_nothing_half_written(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(name, tmp_path / "set")
    real, calls = os.fsync, []

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"No space left on device.*RUEDA_CACHE"):
        datasets.get(name, folder)
    for path in (tmp_path / "cache" / name).iterdir():
        assert path.read_bytes() == PLAIN[name][path.name], "whole or not at all"
    monkeypatch.undo()


@pytest.mark.parametrize("source", ["folder", "publisher"])
@pytest.mark.parametrize("name", NAMES)
def test_a_write_that_the_system_refuses_leaves_nothing_half_written(
    name: str, source: str, server: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real refusal in the middle of a file: no file may grow beyond 4,000 bytes."""
    resource = pytest.importorskip("resource", reason="needs limits of a Unix system")
    folder = write(name, tmp_path / "set") if source == "folder" else None
    if folder is None:
        publish(name, *server, monkeypatch.setattr)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1]))
    try:
        with pytest.raises(DataError, match="File too large"):
            datasets.get(name, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    for path in (tmp_path / "cache" / name).iterdir():
        assert path.read_bytes() == PLAIN[name][path.name], "whole or not at all"


@pytest.mark.parametrize("name", ["mnist", "", "glyphs"])
def test_an_unknown_set_is_refused(name: str) -> None:
    with pytest.raises(DataError, match="fashion-mnist, cifar-10"):
        datasets.get(name)
    if name != "glyphs":
        with pytest.raises(DataError, match="glyphs, fashion-mnist, cifar-10"):
            datasets.load(name)
    with pytest.raises(DataError, match="difficulty"):
        datasets.load("cifar-10", difficulty=1)


def test_an_unknown_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="train or test"):
        datasets.load("cifar-10", "validation", write("cifar-10", tmp_path / "set"))


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Serve a folder at an address of this machine only."""
    folder = tmp_path / "published"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)  # it looks for its end so often
        thread.start()
        yield folder, f"http://127.0.0.1:{http.server_address[1]}/"
        http.shutdown()
        thread.join()


def publish(name: str, folder: Path, address: str, put: Callable[..., None]) -> Path:
    """Put the set where the publisher has it; give one file."""
    if name == "fashion-mnist":
        write(name, folder)
        put(fashion_mnist.FashionMnist, "addresses", (address,))
        return folder / "t10k-labels-idx1-ubyte.gz"
    archive = folder / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for file, content in {**PLAIN[name], "../outside": b"harm"}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{file}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    put(cifar10.Cifar10, "addresses", (f"{address}{archive.name}",))
    return archive


@pytest.mark.parametrize("name", NAMES)
def test_a_download_is_kept_and_found_again(
    name: str, server: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = publish(name, *server, monkeypatch.setattr)
    steps: list[tuple[str, int, int | None]] = []
    folder = datasets.get(name, progress=lambda *step: steps.append(step))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == PLAIN[name]
    assert steps[-1][1] == steps[-1][2]
    file.unlink()  # from now on the publisher is not needed
    check(name, datasets.load(name), datasets.load(name, "test"))
    first = sorted(folder.iterdir())[0]
    damage(first, "truncated")
    with pytest.raises(DataError, match=r"it is corrupt|corrupt"):
        for split in ("train", "test"):
            datasets.load(name, split)
    publish(name, *server, monkeypatch.setattr)
    assert datasets.get(name) == folder, "get mends a damaged cache"
    assert first.read_bytes() == PLAIN[name][first.name]


@pytest.mark.parametrize("how", ["truncated", "zeros", "gone", "nobody"])
@pytest.mark.parametrize("name", NAMES)
def test_a_failed_download_leaves_nothing_half_written(
    name: str, how: str, server: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how != "nobody":
        file = publish(name, *server, monkeypatch.setattr)
        file.unlink() if how == "gone" else damage(file, how)
    with pytest.raises(DataError) as caught:
        datasets.load(name)
    assert "\n" not in str(caught.value)
    kept = tmp_path / "cache" / name
    for path in kept.iterdir() if kept.exists() else ():
        assert path.read_bytes() == PLAIN[name][path.name]


def test_a_cache_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RUEDA_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="set RUEDA_CACHE"):
        datasets.get("cifar-10", write("cifar-10", tmp_path / "set"))


def test_the_cache_stands_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUEDA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/rueda")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_folder() == Path("/home/somebody/.cache/rueda")


@workers(2)
def test_only_the_first_worker_fetches(tmp_path: Path) -> None:
    from rueda.world import current

    world = current()
    fetched: list[Path] = []
    failing: list[bool] = []
    kept = {
        (kind, name): getattr(kind, name)
        for kind in (fashion_mnist.FashionMnist, cifar10.Cifar10)
        for name in ("checksums", "system_folders", "addresses")
    }
    os.environ["RUEDA_CACHE"] = str(tmp_path / "cache")
    waiting = os.environ.pop("RUEDA_DATA", None)
    make_small(setattr)

    def download(self: Any, folder: Path, progress: object) -> None:
        fetched.append(folder)
        if failing:
            raise DataError("nobody answers")
        write("cifar-10", folder)

    real = cifar10.Cifar10.download
    cifar10.Cifar10.download = download  # type: ignore[method-assign]
    try:
        check("cifar-10", datasets.load("cifar-10"), datasets.load("cifar-10", "test"))
        assert len(fetched) == (1 if world.rank == 0 else 0)
        os.environ["RUEDA_CACHE"] = str(tmp_path / "other")
        failing.append(True)
        with pytest.raises(DataError, match="nobody answers" if world.rank == 0 else "local rank 0"):
            datasets.load("cifar-10")
        assert len(fetched) == (2 if world.rank == 0 else 0), "nor does another worker try after a failure"
    finally:
        cifar10.Cifar10.download = real  # type: ignore[method-assign]
        del os.environ["RUEDA_CACHE"]
        if waiting is not None:
            os.environ["RUEDA_DATA"] = waiting
        for (kind, name), value in kept.items():
            setattr(kind, name, value)


def test_idx_files_that_are_none_are_refused() -> None:
    without_dimensions, too_many = b"\x00\x00\x08\x00\x07", b"\x00\x00\x08\x50" + bytes(4 * 80)
    for content in (b"", b"\x00\x00\x08", b"\x00\x00\x0d\x01\x00\x00\x00\x00", b"\x00\x00\x08\x02\x00\x00\x00\x01",
                    without_dimensions, too_many):  # fmt: skip
        with pytest.raises(DataError, match="corrupt"):
            fashion_mnist.read_idx(content, "here")


@pytest.mark.parametrize(
    ("name", "num_train", "shape", "mean", "std"),
    [
        ("fashion-mnist", 60_000, (1, 28, 28), [0.28604], [0.35302]),
        ("cifar-10", 50_000, (3, 32, 32), [0.4914, 0.48216, 0.44653], [0.24703, 0.24349, 0.26159]),
    ],
)
def test_the_real_sets_are_what_was_published(
    name: str,
    num_train: int,
    shape: tuple[int, ...],
    mean: list[float],
    std: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = real_data()
    monkeypatch.undo()  # the published checksums
    train, test = (datasets.load(name, split, folder) for split in ("train", "test"))
    assert (len(train), len(test)) == (num_train, 10_000)
    assert train.inputs.shape[1:] == shape
    assert torch.bincount(train.targets).tolist() == [num_train // 10] * 10
    assert torch.bincount(test.targets).tolist() == [1000] * 10
    for channel in range(shape[0]):
        values = train.inputs[::5, channel].float() / 255
        assert float(values.mean()) == pytest.approx(mean[channel], abs=3e-3)
        assert float(values.std()) == pytest.approx(std[channel], abs=3e-3)
