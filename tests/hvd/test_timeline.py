"""The timeline: valid JSON, phases in order, the ranks' marks."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

import rueda.hvd.torch as hvd
from harness import workers
from rueda.hvd.core.timeline import Timeline


@workers(2)
def test_a_timeline_is_valid_and_complete(tmp_path: Path) -> None:
    hvd.init()
    file = tmp_path / "timeline.json"
    hvd.start_timeline(str(file), mark_cycles=True)
    hvd.barrier()
    hvd.allreduce(torch.ones(3), name="small")
    handles = [hvd.allreduce_async(torch.ones(9000), name=f"large{i}") for i in range(2)]
    for handle in handles:
        hvd.synchronize(handle)
    hvd.broadcast(torch.ones(2), 0, name="cast")
    hvd.stop_timeline()
    hvd.barrier()
    if hvd.rank() != 0:
        return
    events = json.loads(file.read_text())
    rows = {event["pid"]: event["args"]["name"] for event in events if event.get("name") == "process_name"}
    by_tensor: dict[str, list[Any]] = defaultdict(list)
    for event in events:
        if event.get("ph") in "BEi":
            by_tensor[rows[event["pid"]]].append(event)
    for tensor, kind, inside in (
        ("small", "ALLREDUCE", "INLINE_ALLREDUCE"),
        ("large0", "ALLREDUCE", "GROUP_ALLREDUCE"),
        ("cast", "BROADCAST", ""),
    ):
        own = by_tensor[tensor]
        begun = [event["name"] for event in own if event["ph"] == "B"]
        assert begun[:2] == [f"NEGOTIATE_{kind}", kind] and inside in ["", *begun]
        assert {event["name"] for event in own if event["ph"] == "i"} == {"0", "1"}  # when each rank came
        depth = 0
        for before, event in zip([own[0], *own], own, strict=False):
            assert event["ts"] >= before["ts"]
            depth += {"B": 1, "E": -1, "i": 0}[event["ph"]]
            assert depth >= 0
        assert depth == 0
    assert any(event.get("name") == "CYCLE_START" for event in by_tensor["cycles"])


@workers(2)
@pytest.mark.parametrize("transport", ["", "gloo"])
def test_on_one_host_small_tensors_go_with_the_negotiation_if_they_are_awaited(transport: str, tmp_path: Path) -> None:
    """Those that nobody waits for yet are fused, and Gloo carries all of them if it is asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUEDA_TRANSPORT", transport)
        hvd.shutdown()  # an earlier test may have begun
        hvd.init()
    file = tmp_path / "timeline.json"
    hvd.start_timeline(str(file))
    hvd.barrier()
    mine = torch.arange(9000.0) + hvd.rank()
    for name, size in (("awaited", 9000), ("large", 90_000)):
        summed = hvd.allreduce(mine.repeat(10)[:size], name=name, op=hvd.Sum)
        assert torch.equal(summed, (2 * torch.arange(9000.0) + 1).repeat(10)[:size])
    handle = hvd.allreduce_async(mine, name="later", op=hvd.Sum)
    assert torch.equal(hvd.synchronize(handle), 2 * torch.arange(9000.0) + 1)
    hvd.stop_timeline()
    rank = hvd.rank()
    hvd.shutdown()
    if rank != 0:
        return
    events = json.loads(file.read_text())
    rows = {event["pid"]: event["args"]["name"] for event in events if event.get("name") == "process_name"}
    inline = {rows[event["pid"]] for event in events if event.get("name") == "INLINE_ALLREDUCE"}
    assert inline == ({"awaited"} if transport == "" else set())


@pytest.mark.parametrize("path", ["/dev/full", "/no/such/folder/timeline.json"])
def test_a_file_that_cannot_be_written_ends_the_timeline_with_one_warning(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    timeline = Timeline()
    timeline.start(path, mark_cycles=True)
    for _ in range(1000):  # more than the file's buffer holds
        with timeline.phase(["weight"], "ALLREDUCE"):
            timeline.cycle()
            timeline.mark("weight", "0")
    timeline.stop()
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [f"timeline {path}"]
    assert not timeline.active and "cannot be written" in caplog.text


def test_a_short_timeline_that_cannot_be_written_is_told_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    timeline = Timeline()
    timeline.start("/dev/full")
    timeline.stop()
    assert len(caplog.records) == 1 and "No space left on device" in caplog.text
