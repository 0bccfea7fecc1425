"""The example of a loop without a framework runs on one worker and on two."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples_here import run_example_on_two


def test_the_bare_loop_on_two_workers(tmp_path: Path) -> None:
    told = run_example_on_two("bare_loop.py", tmp_path)
    assert "16 updates, loss" in told and "source='workers'" in told


def test_nothing_is_imported_that_is_not_used(capsys: pytest.CaptureFixture[str]) -> None:
    import rueda.integrations

    assert dir(rueda.integrations) == ["NoiseMeter"]
