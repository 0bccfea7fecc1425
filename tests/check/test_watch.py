"""What the observers of a worker promise: they are silent, and leave no trace in the script's errors."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

import pytest
import torch

from rueda.check.audit.watch.counters import Counters
from rueda.check.audit.watch.journal import Journal
from rueda.check.audit.watch.place import users_traceback
from rueda.check.running import run_script


def test_a_traceback_has_no_frames_of_the_observation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "fails.py"
    script.write_text("def step():\n    raise ValueError('a bad batch')\nstep()\n")
    monkeypatch.setattr(sys, "argv", ["test"])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    with pytest.raises(ValueError, match="a bad batch") as caught:
        run_script([str(script)])
    shown = [frame.filename for frame in traceback.extract_tb(users_traceback(caught.value))]
    assert shown == [__file__, str(script), str(script)]


def test_an_error_of_the_observation_is_noted_and_the_script_goes_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 0)
    for _ in range(20):
        with journal.careful:
            raise TypeError("of our own")
    with pytest.raises(KeyboardInterrupt), journal.careful:
        raise KeyboardInterrupt
    journal.on_finish(lambda: 1 / 0)
    journal.finish()
    notes = [json.loads(line) for line in (tmp_path / "rank-0.jsonl").read_text().splitlines()]
    blind = [note for note in notes if note["kind"] == "blind"]
    assert len(blind) == 8 and blind[0]["text"] == "TypeError: of our own"
    assert blind[0]["where"].startswith("test_watch.py:")
    assert notes[-1]["kind"] == "end"


def test_a_parameter_does_not_inherit_the_name_of_one_that_is_gone() -> None:
    names = Counters().names
    weight = torch.nn.Parameter(torch.zeros(3))
    names[weight] = "0.weight"
    again = torch.nn.Parameter(torch.zeros(3))  # equal values are another parameter
    assert names[weight] == "0.weight" and again not in names
    del weight  # Python may use its address again, which is all that an identity is
    assert len(names) == 0
