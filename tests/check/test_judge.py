"""The judgement of journals that no machine here can write: GPUs, backends, loaders; and where numbers come from."""

from __future__ import annotations

import base64
import zlib
from array import array
from pathlib import Path
from typing import Any

import pytest

from rueda.check.audit.judge.journals import Journals, read_journals
from rueda.check.audit.judge.judging import judge
from rueda.check.audit.judge.machine import judge_machine
from rueda.check.audit.judge.provenance import Provenance
from rueda.check.audit.judge.rates import judge_rates
from rueda.check.audit.judge.updates import _classify
from rueda.records.script_check import FAILED, NOT_SEEN, PASSED, WARNING

GPU = {
    "kind": "machine", "host": "a", "threads": 1, "cores": 8, "threads_place": "", "device": "cuda", "process": 1,
    "gpu": "GPU-1", "backend": "nccl", "seconds": 10.0, "loading": 0.5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("check", "changes", "status"),
    [
        ("one-gpu", [{}, {}], FAILED),
        ("one-gpu", [{}, {"gpu": "GPU-2"}], PASSED),
        ("one-gpu", [{}, {"host": "b"}], PASSED),  # a driver may give the first GPU of each machine the same name
        ("one-gpu", [{"device": "cpu", "gpu": ""}] * 2, NOT_SEEN),
        ("wrong-backend", [{"backend": "gloo"}, {}], WARNING),
        ("wrong-backend", [{"backend": "cpu:gloo,cuda:nccl"}] * 2, PASSED),
        ("wrong-backend", [{"backend": ""}] * 2, NOT_SEEN),
        ("slow-loader", [{}, {"loading": 4.0}], WARNING),
        ("slow-loader", [{}, {}], PASSED),
        ("slow-loader", [{"device": "cpu", "loading": 9.0}] * 2, NOT_SEEN),
        ("too-many-threads", [{"device": "cpu", "threads": 5}] * 2, WARNING),
        ("too-many-threads", [{"device": "cpu", "threads": 4}] * 2, PASSED),
        (
            "too-many-threads",
            [{"device": "cpu", "threads": 1, "cores": 1}] * 2,
            PASSED,
        ),  # fewer are not possible
    ],
)
def test_the_machine(check: str, changes: list[dict[str, Any]], status: str) -> None:
    journals = Journals([[{**GPU, **one}] for one in changes])
    assert {one.check: one.status for one in judge_machine(journals)}[check] == status


def test_nothing_seen_is_said_of_every_check() -> None:
    verdicts = judge(Journals([[], []]))
    assert {one.status for one in verdicts} <= {NOT_SEEN, PASSED}
    assert all(one.what for one in verdicts if one.status == NOT_SEEN)


def test_an_optimizer_without_a_rate_is_not_judged_by_it() -> None:
    here, rows = f"{Path(__file__).name}:1", base64.b64encode(zlib.compress(array("q", [8, 8]).tobytes())).decode()
    epoch = {
        "kind": "epoch", "loader": f"{here}#0", "number": 0, "steps": 2, "made": here, "rows": rows, "batch_size": 8,
    }  # fmt: skip
    step = {
        "kind": "step", "optimizer": f"{here}#0", "made": here, "number": 1, "rates": [], "names": [],
        "shapes": [], "parameters": [], "values": [], "before": [], "local": {}, "final": {}, "scale": 1.0,
        "sharded": False, "scheduled": 0, "schedule_place": "", "passes": 1, "where": "train.py:9",
    }  # fmt: skip
    found = {one.check: one for one in judge_rates(Journals([[epoch, step], [epoch, step]], script=__file__))}
    assert found["unscaled-rate"].status == found["no-warmup"].status == NOT_SEEN


def test_a_line_that_a_killed_worker_left_unfinished(tmp_path: Any) -> None:
    (tmp_path / "rank-0.jsonl").write_text('{"kind":"start"}\n{"kind":"st')
    assert read_journals(tmp_path, 2).notes == [[{"kind": "start"}], []]


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(("kind", "factor"), [("mean", 1.0), ("sum", None), ("mean twice", -1.0)])
def test_the_exchange_is_recognised(size: int, kind: str, factor: float | None) -> None:
    local = [[float((rank + 2) * (i + 1) % 7 - 3) for i in range(20)] for rank in range(size)]
    mean = [sum(values) / size for values in zip(*local, strict=True)]
    times = size if factor is None else 1 / size if factor < 0 else factor
    assert _classify(local, [[times * value for value in mean]] * size)[0] == kind


@pytest.mark.parametrize(
    ("text", "depends"),
    [
        ("opt = SGD(p, lr=0.1 * hvd.size())", True),
        ("opt = SGD(p, 0.1 * dist.get_world_size())", True),
        ("n = int(os.environ['WORLD_SIZE']); opt = SGD(p, lr=0.1 * n)", True),
        ("rank, n = dist.get_rank(), dist.get_world_size(); opt = SGD(p, lr=0.1 * n)", True),
        ("rank, n = dist.get_rank(), dist.get_world_size(); opt = SGD(p, lr=0.1 * rank)", False),
        ("opt = SGD(p, lr=args.lr * fabric.world_size)", True),
        ("def make(rate): return SGD(p, lr=rate)\nopt = make(0.1 * world.size)", True),
        ("opt = SGD(p, lr=args.lr)", False),
        ("opt = SGD(p, lr=0.1, momentum=0.9)", False),
        ("kwargs = dict(lr=0.1 * hvd.size()); opt = SGD(p, **kwargs)", True),
        ("loader = DataLoader(data, batch_size=64 // hvd.size()); opt = SGD(p, lr=0.1)", False),
        ("shape = x.size(); opt = SGD(p, lr=0.1 * shape)", False),
    ],
)
def test_where_a_rate_comes_from(text: str, depends: bool) -> None:
    line = next(number for number, one in enumerate(text.splitlines(), 1) if "SGD" in one)
    assert Provenance(text).depends_on_size("", "lr", line) == depends


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("for group in opt.param_groups: group['lr'] = 0.1 * hvd.size()", True),
        ("args.lr *= world_size", True),
        ("scheduler = LambdaLR(opt, lambda t: hvd.size() * t)", True),
        ("scheduler = StepLR(opt, 10)", False),
        ("total = 10 * hvd.size()", False),
    ],
)
def test_whether_a_rate_is_changed(text: str, changes: bool) -> None:
    assert Provenance(text).rate_changes_with_size() == changes
