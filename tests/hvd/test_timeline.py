"""The timeline: valid JSON, phases in order, the ranks' marks."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

import rueda.hvd.torch as hvd
from harness import workers


@workers(2)
def test_a_timeline(tmp_path: Path) -> None:
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
        ("small", "ALLREDUCE", "RIDE"),
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
