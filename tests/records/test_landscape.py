"""The record of a landscape: there and back, strict JSON, and what does not fit is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from rueda.errors import RunError
from rueda.records.landscape import Interpolation, Landscape, Lines, ModelLandscape, Sheet, Surface, TrainingPath


def sample() -> Landscape:
    rows = ((1.0, math.inf), (0.5, 0.25), (2.0, 3.0))
    sheet = Sheet(split="train", loss=rows, error=rows)
    trail = TrainingPath(
        steps=(0, 9), x=(1.0, 0.0), y=(0.0, 0.0), explained=(0.9, 0.1), loss=(2.0, 1.0), rebuilt_start=True
    )
    surface = Surface(x=(0.0, 1.0), y=(-1.0, 0.0, 1.0), sheets=(sheet,), directions="given", trail=trail)
    line = Sheet(split="test", loss=((1.0, 2.0),))
    member = ModelLandscape(
        name="a", weights="w", num_parameters=3, num_examples=4, step=9, surface=surface, path=surface,
        lines=Lines(alphas=(0.0, 1.0), sheets=(line,), directions="d"),
        interpolation=Interpolation(start="a", end="b", alphas=(0.0, 1.0), sheets=(line,)),
    )  # fmt: skip
    return Landscape(task="t", members=(member,), command="c")


def test_there_and_back(tmp_path: Path) -> None:
    sample().save(tmp_path / "landscape.json")
    text = (tmp_path / "landscape.json").read_text()
    assert "Infinity" not in text and "NaN" not in text
    found = Landscape.load(tmp_path)
    surface = found.members[0].surface
    assert surface is not None and math.isnan(surface.sheets[0].loss[0][1])
    assert found.members[0].lines == sample().members[0].lines
    assert found.to_json() == sample().to_json()
    assert surface.edge(surface.sheets[0].loss) == 1.5  # of 1, inf, 0.5, 0.25, 2, 3: what overflowed is the highest
    assert surface.centre(surface.sheets[0].loss) == 0.5


def damage(path: str, value: Any) -> str:
    data = json.loads(sample().to_json())
    place = data
    *before, last = path.split(".")
    for part in before:
        place = place[int(part) if part.isdigit() else part]
    place[last] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("kind", "study"), ("format", 2), ("members", []), ("members", 3), ("task", None),
        ("members.0.surface.x", [0.0]), ("members.0.surface.sheets", []), ("members.0.lines.alphas", [1.0]),
        ("members.0.path.trail.x", [1.0]), ("members.0.num_parameters", "many"), ("members.0.path.trail.explained", []),
        ("members.0.interpolation.sheets", [{"split": "train", "loss": [["high", 1.0]]}]),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(path: str, value: Any) -> None:
    with pytest.raises(RunError, match="make it again with `rueda examine`") as error:
        Landscape.from_json(damage(path, value))
    assert len(str(error.value).splitlines()) == 1


def test_old_pictures_of_the_same_weights_are_kept() -> None:
    (old,) = sample().members
    new = ModelLandscape(name="a", weights="w", num_parameters=3, num_examples=4)
    assert new.with_old(old).surface == old.surface
    assert ModelLandscape(name="a", weights="x", num_parameters=3, num_examples=4).with_old(old).surface is None
    assert ModelLandscape(name="a", weights="w", num_parameters=3, num_examples=5).with_old(old).surface is None
