"""The code of docs/keras.md runs, on the Keras backend of this process."""

from __future__ import annotations

from pathlib import Path

import pytest

import console

PAGE = (Path(__file__).parents[2] / "docs" / "keras.md").read_text()
BLOCKS = [block for block in console.blocks(PAGE) if block.language == "python"]

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras's own, on torch


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"line {block.line}")
def test_the_code_of_the_page_runs(block: console.Block) -> None:
    exec(compile(block.text, "docs/keras.md", "exec"), {})


def test_the_page_has_code() -> None:
    assert len(BLOCKS) == 3
