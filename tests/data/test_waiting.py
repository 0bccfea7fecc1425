from __future__ import annotations

import pytest

from rueda.data.waiting import Waiting, advice


def test_little_waiting_is_not_told() -> None:
    assert advice(4.9, 5.0, 0, 8) is None and advice(29.0, 100.0, 0, 8) is None
    assert "num_workers=4" in str(advice(31.0, 100.0, 2, 8))
    assert "all 2 cores read already" in str(advice(31.0, 100.0, 2, 2))


def test_the_line_is_told_once_after_the_first_epoch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("rueda.data.waiting.time.perf_counter", lambda: now[0])
    for speaks in (True, False):
        waiting = Waiting(0, speaks=speaks)
        for epoch in (3, 3, 3, 4, 4, 5):
            began = now[0]
            now[0] += 10.0
            waiting.add(epoch, began)
            now[0] += 5.0
        assert capsys.readouterr().err.count("57 % of the first epoch (20 of 35 s)") == speaks
