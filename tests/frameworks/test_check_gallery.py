"""The gallery of Accelerate's and Lightning Fabric's scripts: mistakes are named, and no right script is accused."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkhere import check, marked
from rueda.records.script_check import ADVICE, FAILED, WARNING

pytest.importorskip("accelerate", reason="Accelerate is in the second environment: make test-keras")
pytest.importorskip("lightning", reason="Lightning is in the second environment: make test-keras")

SCRIPTS = sorted((Path(__file__).parent / "gallery").glob("*/*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_mistakes_are_named_and_no_right_script_is_accused(script: Path, tmp_path: Path) -> None:
    verdicts = check(script, tmp_path, preloaded=("accelerate", "lightning.fabric"))
    found = {one.check: one for one in verdicts if one.status in (FAILED, WARNING, ADVICE)}
    expected = marked(script)
    assert bool(expected) == (script.parent.name == "wrong")
    assert found.keys() == expected.keys()
    for mistake, lines in expected.items():
        assert {int(place.rsplit(":", 1)[1]) for place in found[mistake].where} & set(lines)
