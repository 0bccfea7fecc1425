"""Points that are kept as they come: a killed command goes on where it was, and never takes another's points."""

from __future__ import annotations

import os
import signal
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from forked import forked
from rueda.errors import RunError
from rueda.examine.landscape.grid import Execution, Journal, axis, measure
from rueda.examine.landscape.surface import surface
from rueda.examine.objective.objective import Objective, Values

LINES = "points-*.jsonl"


def objective(weight: float = 2.0) -> Objective:
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, weight)
    x = torch.ones(3, 1, dtype=torch.float64)
    return Objective(model, lambda outputs, y: outputs[:, 0].square(), x, torch.zeros(3))


def counted(folder: Path, num_points: int, *, weight: float = 2.0, key: str = "k", stop_at: int = -1) -> list[int]:
    """Measure points and give the numbers of those that were computed."""
    computed: list[int] = []
    here = objective(weight)

    def go(index: int) -> None:
        if index == stop_at:
            raise KeyboardInterrupt
        computed.append(index)
        here.move([here.origin], [index])

    found = None
    try:
        found = measure({"train": here}, num_points, go, key=[key], execution=Execution(folder=folder))
    except KeyboardInterrupt:
        assert stop_at >= 0
    if found is not None:
        assert [value.loss for value in found["train"]] == [(weight * (1 + i)) ** 2 for i in range(num_points)]
    return computed


def test_a_stopped_grid_goes_on_where_it_was(tmp_path: Path) -> None:
    assert counted(tmp_path, 9, stop_at=5) == [0, 1, 2, 3, 4]
    assert counted(tmp_path, 9) == [5, 6, 7, 8]
    assert counted(tmp_path, 9) == []


@pytest.mark.parametrize("other", [{"weight": 3.0}, {"key": "another"}])
def test_points_of_another_model_or_grid_are_not_taken(tmp_path: Path, other: dict[str, object]) -> None:
    counted(tmp_path, 4)
    assert counted(tmp_path, 4, **other) == [0, 1, 2, 3]  # type: ignore[arg-type]


def cut(text: str) -> str:
    return text[:-9]


def smear(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:3], "rubbish\n", *lines[4:]])


@pytest.mark.parametrize(("damage", "missing"), [(cut, [5]), (smear, [2])])
def test_torn_and_damaged_lines(tmp_path: Path, damage: Callable[[str], str], missing: list[int]) -> None:
    counted(tmp_path, 6)
    (file,) = tmp_path.glob(LINES)
    file.write_text(damage(file.read_text()))
    assert counted(tmp_path, 6) == missing
    assert counted(tmp_path, 6) == []


def test_values_survive_exactly(tmp_path: Path) -> None:
    values = [Values(1 / 3, 0.1), Values(float("inf"), None), Values(5e-324, 1.0)]
    journal = Journal(tmp_path, "k")
    journal.append(7, values)
    assert Journal(tmp_path, "k").read() == {7: values}


def test_many_workers_then_one(tmp_path: Path) -> None:
    """Points that three workers have kept are taken up by one."""
    whole = counted(tmp_path, 6)
    (file,) = tmp_path.glob(LINES)
    head, *lines = file.read_text().splitlines(keepends=True)
    file.unlink()
    for rank in range(3):
        (tmp_path / f"points-{rank}.jsonl").write_text(head + "".join(lines[rank:5:3]))
    assert whole == [0, 1, 2, 3, 4, 5] and counted(tmp_path, 6) == [5]


def test_resumed_after_a_kill_it_is_the_same_surface(tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        import os, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from test_grid import objective
        from rueda.examine.landscape.grid import Execution, axis
        from rueda.examine.landscape.surface import surface
        here, real, count = objective(), type(objective()).values, 0
        def values(self):
            global count
            count += 1
            if count == 8:
                os.kill(os.getpid(), 9)
            return real(self)
        type(here).values = values
        kept = Execution(folder=Path({str(tmp_path)!r}))
        surface({{"train": here}}, x=axis(-1, 1, 5), y=axis(-1, 1, 3), execution=kept)
        """
    )
    with forked(script, [{**os.environ, "OMP_NUM_THREADS": "1"}]) as (process,):
        assert process.wait()[0] == -signal.SIGKILL
    kept = Path(next(tmp_path.glob(LINES))).read_text().splitlines()
    assert len(kept) == 1 + 7
    axes = {"x": axis(-1, 1, 5), "y": axis(-1, 1, 3)}
    assert surface({"train": objective()}, **axes, execution=Execution(folder=tmp_path)) == surface(
        {"train": objective()}, **axes
    )
    assert len(Path(next(tmp_path.glob(LINES))).read_text().splitlines()) == 1 + 15


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        counted(tmp_path / "file" / "points", 2)


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    surface({"train": objective()}, x=(0.0, 1.0), y=(0.0, 1.0))
    assert torch.get_num_threads() == before
