"""Lab 2: the bytes that travel, the steps of an iteration, the shares of a data set, and what its screens show."""

from __future__ import annotations

import pytest

from harness import workers
from rueda import world as worlds
from rueda.labs.lab_2 import figures, pages, scripts, sharing
from rueda.labs.lab_2.audits import Audit
from rueda.labs.lab_2.iteration import AVERAGE, STEPS, Iteration, measure_iteration
from rueda.labs.lab_2.measurements import Measurements
from rueda.labs.lab_2.parallelism import PipelineRun, Traffic, measure_pipelines, measure_traffic
from rueda.labs.showing import Code, Text
from rueda.measure.trace import StageSpan
from rueda.records.profile import Communication
from rueda.records.script_check import FAILED, ScriptCheck, Verdict
from rueda.report.model import Table
from rueda.report.plot import Plot
from rueda.world import World


@workers(2)
def test_what_travels_and_when() -> None:
    world = worlds.current()
    found = {one.way: one for one in measure_traffic(world, [8], [16])}
    # Two matrices of 16 x 16; 8 x 16 activations, one way and back; the same reduced twice. Numbers have 4 bytes.
    assert {way: one.tensor_bytes for way, one in found.items()} == {"data": 2048, "pipeline": 512, "tensor": 1024}
    for one in found.values():
        assert one.difference < 1e-5, f"{one.way}: not the gradients of the undivided network"
        assert one.sent_bytes is None or one.tensor_bytes <= one.sent_bytes < one.tensor_bytes + 4096
    for run in measure_pipelines(world, [1, 2], batch=16, width=16, repeats=1):
        passes = [f"{kind} {number + 1}" for kind in ("forward", "backward") for number in range(run.micro_batches)]
        assert [sorted(span.stage for span in spans) for spans in run.spans] == [sorted(passes)] * 2
        assert 0 <= run.idle < 1
    together = measure_iteration(world, batch=4, repeats=2, width=8)
    assert [span.stage for span in together.spans[1]] == figures.ORDER
    alone = measure_iteration(World(), batch=4, repeats=2, width=8)
    assert [span.stage for span in alone.spans[0]] == list(STEPS)


def test_there_are_fifteen_steps_and_the_average_is_between_backward_and_update() -> None:
    assert len(STEPS) == 15
    assert figures.ORDER[11:14] == ["backward, layer 1", AVERAGE, "prepare the update"]


@pytest.mark.parametrize("way", sharing.WAYS)
@pytest.mark.parametrize(("examples", "size"), [(24, 2), (25, 2), (26, 4)])
def test_shares(way: str, examples: int, size: int) -> None:
    shares = sharing.WAYS[way](examples, size, 0)
    read = [example for share in shares for example in share]
    assert len(shares) == size and set(read) <= set(range(examples))
    equal = len(set(map(len, shares))) == 1
    assert equal or (way == "every n-th example" and examples % size)
    if way == "DistributedSampler":
        assert set(read) == set(range(examples)) and shares != sharing.WAYS[way](examples, size, 1)
    if way == "rueda.Loader, shards":
        assert len(set(read)) == len(read)
    assert ("is read once" in sharing.describe(shares, examples)) == (sorted(read) == list(range(examples)))


def measurements() -> Measurements:
    spans = tuple(StageSpan(name, 0.001 * at, 0.001 * (at + 1)) for at, name in enumerate(figures.ORDER))
    alone = tuple(span for span in spans if span.stage != AVERAGE)
    passes = (StageSpan("forward 1", 0.0, 0.01), StageSpan("backward 1", 0.01, 0.02))
    return Measurements(
        traffic=tuple(
            Traffic(way=way, batch=batch, width=64, tensor_bytes=4096, sent_bytes=4200.0, difference=1e-7)
            for way in ("data", "pipeline", "tensor") for batch in (16, 32)
        ),
        pipelines=(PipelineRun(micro_batches=1, spans=(passes, passes)),),
        alone=Iteration(workers=1, batch=8, spans=(alone,), repeats=3),
        together=Iteration(workers=2, batch=8, spans=(spans, spans), repeats=3),
        communication=Communication(workers=2, backend="gloo", points=(), latency=1e-4, bandwidth=1e9, residual=0.0),
        threads=1,
    )  # fmt: skip


def test_figures() -> None:
    found = measurements()
    plot, table = figures.traffic_plot(found, 16, 64)
    assert isinstance(plot, Plot) and isinstance(table, Table) and table.texts[0][2:] == ["4,096", "4,200"]
    words = figures.timeline(found, 2, 13)[0]
    assert (
        isinstance(words, Text)
        and words.text.startswith("**+ average the gradients.**")
        and "1 ms and 1 ms" in words.text
    )
    nothing = figures.timeline(found, 1, 13)[0]
    assert isinstance(nothing, Text) and "nothing to average" in nothing.text
    told = figures.timeline(found, 2, 16)[-1]
    assert isinstance(told, Text) and "2.00 times" in told.text
    bars = figures.timeline(found, 1, 3)[1]
    assert isinstance(bars, Plot)
    assert bars.traces[0]["marker"]["opacity"] == [1.0] * 3 + [0.15] * 12
    assert isinstance(figures.pipeline_plot(found, 1)[0], Plot)
    assert isinstance(figures.exchange(found)[0], Plot)
    assert isinstance(figures.shares_plot([[0, 1], [2, 2]], 3)[0], Plot)


def result(*printed: str, verdicts: tuple[Verdict, ...] = (), error: str = "") -> Audit:
    check = ScriptCheck(script="train.py", workers=2, checks=verdicts, script_status=bool(error))
    return Audit(style="ddp", steps=(), check=check, printed=printed, error=error)


def test_what_a_run_shows() -> None:
    line = "epoch 0: test accuracy 0.500, size of the weights {}\n"
    two = pages.run_page(
        result(line.format(1.5), line.format(1.6), verdicts=(Verdict("drift", FAILED, "x", ("a:1",)),))
    )
    assert isinstance(two[1], Table) and "two models" in two[1].note
    assert isinstance(two[2], Text) and "1 mistake" in two[2].text
    assert isinstance(two[3], Text) and two[3].text.startswith("**failed, drift**")
    one = pages.run_page(result(line.format(1.5), ""))
    assert isinstance(one[1], Table) and one[1].rows == [["0", "50.0 % (1.5000)", "–"]]
    assert "alone" in one[1].note
    stopped = pages.run_page(result("", "", error="ValueError: no"))
    assert len(stopped) == 1 and isinstance(stopped[0], Text) and "ValueError: no" in stopped[0].text


def test_a_step_is_shown_as_a_difference() -> None:
    changed = pages.difference(scripts.up_to("ddp", 2), scripts.up_to("ddp", 3))
    assert "+ from torch.nn.parallel import DistributedDataParallel" in changed
    assert "+ model = DistributedDataParallel(model, init_sync=False)" in changed


@pytest.mark.parametrize("style", ["rueda", "ddp", "horovod"])
def test_the_serial_script_can_be_converted(style: str) -> None:
    words, code = pages.conversion_page(style)
    assert isinstance(words, Text) and "sure of every change" in words.text
    assert isinstance(code, Code) and "+" in code.source
