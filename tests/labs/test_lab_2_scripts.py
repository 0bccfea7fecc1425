"""The scripts of lab 2: whole, they pass every check; without a step, `rueda check` names what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkhere import check
from rueda.errors import RuedaError
from rueda.labs.lab_2 import scripts
from rueda.labs.lab_2.audits import all_scripts, digest_of, stored
from rueda.labs.lab_2.scripts import all_but
from rueda.records.script_check import ADVICE, FAILED, WARNING

ALL = scripts.ORDER
# What is found if a step is left out; without `init` the script stops, and on a CPU nothing is pinned.
FOUND = {
    "wrap": {"gradients-not-averaged"},
    "synchronise": {"different-start"},
    "partition": {"overlapping-data", "unscaled-rate"},
    "writer": {"same-file"},
}


def found(style: str, steps: tuple[str, ...], folder: Path) -> set[str]:
    file = folder / "train.py"
    file.write_text(scripts.script(style, steps), encoding="utf-8")
    return {one.check for one in check(file, folder) if one.status in (FAILED, WARNING, ADVICE)}


@pytest.mark.parametrize("steps", [ALL, (*ALL, "slices")], ids=["sampler", "slices"])
@pytest.mark.parametrize("style", ["ddp", "horovod"])
def test_the_whole_script_passes_every_check(style: str, steps: tuple[str, ...], tmp_path: Path) -> None:
    assert found(style, steps, tmp_path) == set()


@pytest.mark.parametrize(("style", "step"), [("ddp", "wrap"), ("horovod", "writer")])
def test_what_is_missing_is_named(style: str, step: str, tmp_path: Path) -> None:
    # Here the workers are forked, with equal seeds; the stored runs have workers that start with seeds of their own.
    assert FOUND[step] <= found(style, all_but(step), tmp_path)


@pytest.mark.parametrize("style", ["ddp", "horovod"])
def test_the_stored_runs_name_what_is_missing(style: str) -> None:
    for step, expected in FOUND.items():
        assert expected <= {one.check for one in stored(style, all_but(step)).found}, step
    assert not stored(style, ALL).found and stored(style, ALL).check.script_status == 0
    assert stored(style, all_but("init")).error


def test_stored_runs_are_those_of_these_scripts() -> None:
    for style, steps in all_scripts():
        one = stored(style, steps)
        assert one.digest == digest_of(style, steps), f"run python -m rueda.labs.lab_2.audits: {style} {steps}"
        assert not one.live
    waiting = stored("ddp", (*ALL, "slices", "uneven"))
    assert {"different-batch-counts"} <= {one.check for one in waiting.found}


def test_every_script_is_python_and_every_step_changes_it() -> None:
    for style, steps in all_scripts():
        text = scripts.script(style, steps)
        compile(text, style, "exec")
        assert "#:" not in text
    for style in scripts.STYLES:
        texts = [scripts.up_to(style, number) for number in range(len(ALL) + 1)]
        same = [name for name, before, after in zip(ALL, texts, texts[1:], strict=False) if before == after]
        assert same == []


def test_an_unknown_step_is_refused() -> None:
    with pytest.raises(RuedaError, match="expected one of ddp, horovod, keras"):
        scripts.script("ddp", ["nothing"])
