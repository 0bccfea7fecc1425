"""What ``rueda convert`` makes passes ``rueda check``."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkhere import check
from converthere import NAMES, STYLES, UNSURE
from rueda.check.convert import convert
from rueda.records.script_check import ADVICE, FAILED, WARNING
from scalehere import SCRIPTS

pytestmark = pytest.mark.slow

SURE = [(name, to) for name in NAMES for to in STYLES if (name, to) not in UNSURE]
CHECKED = [key for number, key in enumerate(SURE) if key[1] == "ddp" or number % 4 == 0]
INFORMED = {"batch_norm": {"few-examples-per-statistic"}}  # of its 12 examples each worker has 6


@pytest.mark.parametrize(("name", "to"), CHECKED, ids=["-".join(key) for key in CHECKED])
def test_a_converted_script_passes(name: str, to: str, tmp_path: Path) -> None:
    script = tmp_path / f"{name}.py"
    conversion = convert((SCRIPTS / script.name).read_bytes(), to=to, name=script.name)
    assert not conversion.warnings
    script.write_bytes(conversion.after)
    verdicts = check(script, tmp_path)
    found = {one.check for one in verdicts if one.status in (FAILED, WARNING, ADVICE)}
    assert found == INFORMED.get(name, set()), verdicts
    assert sum(one.status == "passed" for one in verdicts) >= 5


def test_most_of_them_are_checked() -> None:
    assert sum(key[1] == "ddp" for key in CHECKED) >= 12
    assert {key[1] for key in CHECKED} == {"ddp", "rueda", "horovod"}
