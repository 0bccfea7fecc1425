"""A gallery of scripts: each mistake is named at its line, and no script without one is accused."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkhere import GALLERY, check, marked
from rueda.check.audit.judge.checks import CHECKS
from rueda.records.script_check import ADVICE, FAILED, WARNING

pytestmark = pytest.mark.slow

ACCUSED = (FAILED, WARNING, ADVICE)
WRONG, RIGHT = (sorted((GALLERY / kind).glob("*.py")) for kind in ("wrong", "right"))


def named(script: Path) -> str:
    return script.stem


@pytest.mark.parametrize("script", WRONG, ids=named)
def test_a_mistake_is_named_at_its_line(script: Path, tmp_path: Path) -> None:
    expected = marked(script)
    assert expected, "the script does not say what is wrong"
    found = {one.check: one for one in check(script, tmp_path) if one.status in ACCUSED}
    for mistake, lines in expected.items():
        assert mistake in found, found
        shown = {int(place.rsplit(":", 1)[1]) for place in found[mistake].where}
        assert shown & set(lines), found[mistake]
        assert found[mistake].what and found[mistake].cure
    assert set(found) <= {*expected, "unscaled-rate"}, found  # advice that many of these scripts deserve


SIZES = [(script, 2) for script in RIGHT] + [(script, 3) for script in RIGHT[::3]]


@pytest.mark.parametrize(("script", "size"), SIZES, ids=[f"{script.stem}-{size}" for script, size in SIZES])
def test_no_right_script_is_accused(script: Path, size: int, tmp_path: Path) -> None:
    verdicts = check(script, tmp_path, size=size)
    assert [one for one in verdicts if one.status in ACCUSED] == []
    assert sum(one.status == "passed" for one in verdicts) >= 8, verdicts


def test_the_gallery_has_what_it_promises() -> None:
    assert len(WRONG) >= 25
    assert len(RIGHT) >= 12
    mistakes = {name for script in WRONG for name in marked(script)}
    on_gpus = {"one-gpu", "wrong-backend", "slow-loader"}
    assert mistakes == CHECKS.keys() - on_gpus
