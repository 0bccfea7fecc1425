"""Bad input by the hundred: damaged files and wrong command lines get one line, never a traceback, and never hang.

hypothesis makes the inputs: files that are valid but for a value, a byte or an end, and command lines of real options
with wrong values. Every file is read through the commands that a user would type. Work that takes longer than reading
is replaced: no process is started, nothing is trained and nothing is downloaded.

500 inputs belong to the tests; ``make fuzz`` tries 10,000 others (``RUEDA_FUZZ`` is their number).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gzip
import importlib
import io
import json
import os
import pickle
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import typer

from plan.profiles import line, noise, profile, step
from rueda.errors import JobError, RuedaError

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed: pip install 'rueda[dev]'")
st: Any = pytest.importorskip("hypothesis.strategies")

INPUTS = int(os.environ.get("RUEDA_FUZZ", "500"))
SECONDS = 20.0  # an input that takes longer hangs
SHARES = {  # of the inputs
    "recipes": 10, "profiles": 12, "clusters": 10, "plans": 6, "runs": 12, "hosts": 10, "idx": 6, "cifar": 6,
    "words": 28,
}  # fmt: skip


# What the inputs are made of.

NUMBERS = ["0", "-1", "1", "2", "0.5", "1e-400", "1e999", "inf", "-inf", "nan", "99999999999999999999", "1_0", "0x10"]
TEXTS = [
    "",
    " ",
    "-",
    "--",
    "a",
    "none",
    "true",
    "null",
    "[]",
    "{}",
    "1,2",
    ",",
    "a,b",
    "=",
    "x=",
    "=x",
    "\t",
    "é",
    "\udcff",
    "🙂",
]
LEAVES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**64), 10**400, 0.5, -0.0, 1e308, -1e308, 5e-324, float("nan"),
    float("inf"), "", "a", "x" * 300, "\ud800", "1", [], {}, [[]], [1, 2, 3], {"a": 1}, [None], "\x00",
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """List the places of all values within decoded JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


@st.composite
def damaged_json(draw: Any, good: dict[str, Any]) -> bytes:
    """Replace, remove or repeat values of a valid record, or damage its text."""
    data = copy.deepcopy(good)
    for _ in range(draw(st.integers(0, 3))):
        found = list(places(data))
        if not found:
            break
        *above, last = draw(st.sampled_from(found))
        owner: Any = data
        for key in above:
            owner = owner[key]
        match draw(st.sampled_from(("replace", "replace", "remove", "swap"))):
            case "replace":
                owner[last] = copy.deepcopy(draw(st.sampled_from(LEAVES)))
            case "remove":
                del owner[last]
            case "swap" if isinstance(owner, list):
                owner.append(owner[last])
    return draw(damaged_bytes(json.dumps(data).encode()))


@st.composite
def damaged_bytes(draw: Any, good: bytes) -> bytes:
    """Cut bytes, change some of them, or insert others; or leave them."""
    content = bytearray(good)
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 2)))):
        at = draw(st.integers(0, len(content)))
        match draw(st.sampled_from(("cut", "change", "insert", "repeat"))):
            case "cut":
                del content[at:]
            case "change":
                content[at : at + 1] = draw(st.binary(min_size=1, max_size=4))
            case "insert":
                content[at:at] = draw(
                    st.sampled_from((b"\x00", b"\xff\xfe", b"[" * 3000, b"\n", b'"', b"{}", b"1e999"))
                )
            case "repeat":
                content += content[: min(at, 500)]
    return bytes(content)


@st.composite
def damaged_toml(draw: Any, good: str) -> bytes:
    """Give lines of a valid file other values, other names, or leave them out."""
    lines = good.splitlines()
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(lines)))
        name = lines[at].split("=")[0].strip() if at < len(lines) and "=" in lines[at] else "batch"
        value = draw(st.sampled_from([*NUMBERS, *TEXTS, '"a"', "[1, 'a']", "{a = 1}", "2020-01-01", "'''", "[[x]]"]))
        lines[at : at + draw(st.integers(0, 1))] = [
            draw(st.sampled_from((f"{name} = {value}", f"{name} = {value}", f"{value}", f"[{name}]", f"{name}.a = 1")))
        ]
    return draw(damaged_bytes("\n".join(lines).encode("utf-8", "surrogateescape")))


# Valid files.

PROFILE = json.loads(
    profile(
        [step(16, 0.01), step(64, 0.02, spread=0.001), step(256, 0.06)],
        noise=(noise(900.0),), communication=(line(2, 1e-5, 1e9), line(4, 2e-5, 1e9)),
    ).to_json()
)  # fmt: skip
CLUSTER = """
title = "two boxes"
devices_per_node = 8
max_nodes = 2
price_per_hour = 12.5
currency = "EUR"
sources = ["a page"]
approximate = ["price_per_hour"]
[failures]
mtbf_hours = 0.5
checkpoint_seconds = 3
spares = 2
elastic = true
[device]
name = "a GPU"
speed = 30.0
[inside]
bandwidth = 4e11
latency = 1e-6
[between]
bandwidth = 5e10
latency = 2e-6
efficiency = 0.8
"""
RECIPE = """
workers = 4
batch = 64  # measured
rate = 0.05
optimizer = "lars"
schedule = "step"
milestones = [2, 4]
warmup_epochs = 1.0
epochs = 5
seed = 7
[model]
width = 2
"""
ENVIRONMENT = {
    "task": "linear",
    "versions": {"torch": "2.13.0"},
    "machine": {"cores": 2},
    "command": "rueda train linear",
}
ROW = {
    "kind": "epoch", "epoch": 1, "step": 10, "examples": 640, "seconds": 1.5, "train_loss": 1.0, "train_accuracy": 0.5,
    "test_loss": 1.1, "test_accuracy": 0.4, "images_per_second": 400.0, "rate": 0.05, "global_batch": 64,
}  # fmt: skip
HOSTS = "server1 slots=4\nserver2:2  # a comment\n[fe80::1]:3\nada@server4 slots=1 max_slots=8\n"
IDX = bytes([0, 0, 8, 3]) + struct.pack(">3I", 2, 28, 28) + bytes(2 * 28 * 28)
CIFAR = pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 9]}, protocol=2)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one valid file of each kind, in which nothing can be started, trained or downloaded."""
    # The first optimizer loads it, which takes longer than an input may where the disk is slow.
    importlib.import_module("torch._dynamo")

    from rueda import jobs, report
    from rueda.tasks.datasets import cifar10, download, fashion_mnist
    from rueda.train import job as train_job
    from rueda.train.training import Training
    from rueda.world.launch import driver

    def refuse(*_: Any, **__: Any) -> Any:
        raise JobError("nothing is started here", 2)

    def build_only(task: Any, request: Any) -> Any:
        import torch

        recipe = train_job.resolved_recipe(task, request)
        with torch.device("meta"):
            task.build(recipe)
        refuse()

    for module, name in (
        (jobs, "run"), (jobs, "run_many"), (download, "fetch_to"), (cifar10, "fetch_to"), (fashion_mnist, "fetch"),
        (driver, "launch"), (report, "write_figures"), (Training, "step"),  # every update is made by a step
    ):  # fmt: skip
        monkeypatch.setattr(module, name, refuse)
    monkeypatch.setattr(train_job, "train_task", build_only)
    monkeypatch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))  # it takes 0.1 s
    monkeypatch.setenv("RUEDA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RUEDA_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def furnish(folder: Path) -> None:
    """Write the valid files anew, since an input may have overwritten one."""
    (folder / "profile.json").write_text(json.dumps(PROFILE))
    (folder / "cluster.toml").write_text(CLUSTER)
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "hosts").write_text(HOSTS)
    (folder / "train.py").write_text("")
    (folder / "binary").write_bytes(b"\x80\x04\xff\x00" * 8)
    write_run(folder / "run", RECIPE.encode(), json.dumps(ENVIRONMENT).encode(), json.dumps(ROW).encode() + b"\n")


def write_run(folder: Path, recipe: bytes, environment: bytes, metrics: bytes) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in (("recipe.toml", recipe), ("environment.json", environment), ("metrics.jsonl", metrics)):
        (folder / name).write_bytes(content)


# One input.


class Hang(BaseException):
    """An input took too long."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise Hang(f"no answer in {SECONDS:g} s")

    former = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def command(*words: str) -> None:
    """Run a command as ``rueda`` would; its mistakes must be told without a traceback."""
    from rueda.cli import run_command

    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["rueda", *words])
        with limited(), mock.patch.dict(os.environ):  # a command may set variables for its workers
            try:
                status = run_command()
            except SystemExit as left:  # argparse's, with a line on standard error
                status = left.code
    for stream in (out, err):
        stream.flush()
    told = err.buffer.getvalue().decode()
    assert "Traceback" not in told, told
    assert status in (0, 1, 2), (status, told)
    assert status == 0 or told.strip() or out.buffer.getvalue(), f"status {status} without a word"


def attempt(read: Callable[[], object]) -> None:
    """Read a file directly; it is valid, or refused with an error of Rueda."""
    with limited(), contextlib.suppress(RuedaError):
        read()


# The inputs.


def try_recipe(folder: Path, content: bytes) -> None:
    (folder / "other.toml").write_bytes(content)
    command("train", "linear", "--recipe", "other.toml")


def try_profile(folder: Path, content: bytes) -> None:
    (folder / "other.json").write_bytes(content)
    command(
        "plan", "other.json", "--workers", "1,3,64", "--cluster", "cluster.toml" if len(content) % 2 else "this-machine"
    )
    command("report", "other.json", "-o", "page.html")


def try_cluster(folder: Path, content: bytes) -> None:
    (folder / "other.toml").write_bytes(content)
    command("plan", "profile.json", "--workers", "1,16,1000", "--cluster", "./other.toml")


def try_plan(folder: Path, content: bytes) -> None:
    (folder / "plan.json").write_bytes(content)
    command("report", "plan.json", "-o", "page.html")


def try_run(folder: Path, contents: tuple[bytes, bytes, bytes]) -> None:
    write_run(folder / "run", *contents)
    command("report", "run", "-o", "page.html")
    command("plan", "profile.json", "--from-run", "run")
    command("train", "--resume", "--run", "run")


def try_hosts(folder: Path, content: bytes) -> None:
    (folder / "hosts").write_bytes(content)
    command("run", "--hostfile", "hosts", "python", "train.py")
    text = content.decode("utf-8", "surrogateescape").replace("\n", ",").replace("\x00", "")
    command("run", "-np", "2", "-H", text, "python", "train.py")


def try_idx(folder: Path, content: bytes) -> None:
    from rueda.tasks.datasets.fashion_mnist import FashionMnist

    (folder / "a.gz").write_bytes(gzip.compress(content, 1)[: len(content)] if len(content) % 3 == 0 else content)
    attempt(lambda: FashionMnist().decode(folder / "a.gz"))
    attempt(lambda: FashionMnist().arrays(lambda _: content, "train"))
    labels = bytes([0, 0, 8, 1]) + struct.pack(">I", 2) + bytes([1, 200])
    attempt(lambda: FashionMnist().arrays(lambda file: labels if "labels" in file else content, "test"))


def try_cifar(folder: Path, content: bytes) -> None:
    from rueda.tasks.datasets.cifar10 import Cifar10

    for name in ("data_batch_1.bin", "data_batch_1"):
        (folder / name).write_bytes(content)
        attempt(lambda name=name: Cifar10().decode(folder / name))  # type: ignore[misc]
    attempt(lambda: Cifar10().arrays(lambda _: content, "test"))


@st.composite
def command_lines(draw: Any) -> list[str]:
    """A command, some of its options with values that may be wrong, and arguments."""
    from rueda.cli.app import app

    found: Any = typer.main.get_command(app)
    words = []
    while getattr(found, "commands", None):
        name = draw(st.sampled_from(sorted(found.commands)))
        words.append(name)
        found = found.commands[name]
    options = [option for option in found.params if option.opts[0].startswith("-")]
    files = ["profile.json", "cluster.toml", "recipe.toml", "hosts", "run", "binary", ".", "nowhere", "train.py"]
    names = ["linear", "glyphs-cnn", "cifar-10", "fashion-mnist", "this-machine", "dgx-h100", "/dev/zero", "/dev/null"]
    settings = [
        f"{key}={value}" for key in ("seed", "model.width", "batch", "rate", "milestones", "x") for value in NUMBERS
    ]
    values = st.one_of(
        *(st.sampled_from(pool) for pool in (NUMBERS, TEXTS, files, names, settings)),
        st.text(st.characters(exclude_characters="/\x00", exclude_categories=()), max_size=6),
    )
    for option in draw(st.lists(st.sampled_from(options), max_size=4)) if options else ():
        words.append(draw(st.sampled_from(option.opts)))
        if not getattr(option, "is_flag", False):
            words.append(draw(values))
    words += draw(st.lists(values, max_size=3))
    return [*words, "python", "train.py"] if words[0] == "run" and draw(st.booleans()) else words


def try_words(folder: Path, words: list[str]) -> None:
    if "--submit" not in words:  # it would call the machine's own sbatch
        command(*words)


def plan_file(folder: Path) -> dict[str, Any]:
    furnish(folder)
    command("plan", "profile.json", "--workers", "1,4", "--hours", "1000")
    found: dict[str, Any] = json.loads((folder / "plan.json").read_text())
    return found


def check(name: str, folder: Path, strategy: Any, attempt_one: Callable[[Path, Any], None]) -> None:
    """Try the share of one kind of input; a failure shows the smallest input that hypothesis finds."""

    def one(value: Any) -> None:
        furnish(folder)
        attempt_one(folder, value)

    settings = hypothesis.settings(
        max_examples=max(5, INPUTS * SHARES[name] // 100), deadline=None, database=None, derandomize=INPUTS == 500,
        suppress_health_check=list(hypothesis.HealthCheck), print_blob=False,
    )  # fmt: skip
    settings(hypothesis.given(strategy)(one))()


def test_recipes(place: Path) -> None:
    check("recipes", place, damaged_toml(RECIPE), try_recipe)


def test_profiles(place: Path) -> None:
    check("profiles", place, damaged_json(PROFILE), try_profile)


def test_clusters(place: Path) -> None:
    check("clusters", place, damaged_toml(CLUSTER), try_cluster)


def test_plans(place: Path) -> None:
    check("plans", place, damaged_json(plan_file(place)), try_plan)


def test_run_folders(place: Path) -> None:
    rows = st.tuples(damaged_json(ROW), damaged_json(ROW)).map(b"\n".join)
    check("runs", place, st.tuples(damaged_toml(RECIPE), damaged_json(ENVIRONMENT), rows), try_run)


def test_hostfiles(place: Path) -> None:
    check("hosts", place, damaged_toml(HOSTS) | damaged_bytes(HOSTS.encode()), try_hosts)


def test_idx_files(place: Path) -> None:
    check("idx", place, damaged_bytes(IDX) | st.binary(max_size=40).map(lambda tail: IDX[:3] + tail), try_idx)


def test_cifar_files(place: Path) -> None:
    check("cifar", place, damaged_bytes(CIFAR) | st.binary(max_size=60), try_cifar)


def test_command_lines(place: Path) -> None:
    check("words", place, command_lines(), try_words)


LONG_NAME = 300 * "x"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("plan profile.json --cluster dgx-h100 --speed inf", "speed: expected more than 0 and finite, got inf"),
        ("plan profile.json --cluster /dev/zero", "/dev/zero: expected a cluster file, got: more than 100 MB"),
        ("plan profile.json --recipe-output run", "cannot write run: it is a folder; choose the name of a file"),
        ("plan profile.json --recipe-output .", "cannot write .: it is a folder; choose the name of a file"),
        ("plan profile.json --recipe-output /dev/null", "/dev/null: expected a regular file, with plan.json beside it"),
        ("plan /dev/zero", "/dev/zero: expected a profile, got: more than 100 MB"),
        ("train linear --recipe /dev/zero", "/dev/zero: expected a recipe file, got: more than 100 MB"),
        ("train linear --set seed=99999999999999999999", "seed: expected a whole number of at most 64 bits"),
        ("train glyphs-cnn --set model.width=-1", "cannot be built with model = {'width': -1}"),
        ("run -np 2 --hostfile /dev/zero python train.py", "host file /dev/zero: cannot be read (more than 100 MB)"),
        (f"train {LONG_NAME}", f"got '{LONG_NAME}'"),
        (f"train {LONG_NAME}.py", f"expected a Python file that exists, got '{LONG_NAME}.py'"),
        (f"report {LONG_NAME}", f"cannot open {LONG_NAME}: File name too long"),
    ],
)
def test_known_bad_inputs(words: str, told: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of these ended in a traceback or in no answer."""
    from commandline import rueda

    furnish(place)
    assert rueda(*words.split()) == 2
    errors = capsys.readouterr().err
    assert told in errors and errors.count("\n") == 1 and errors.startswith("rueda: "), errors
