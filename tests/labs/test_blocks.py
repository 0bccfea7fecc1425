"""Figures that move, and the static page: without marimo, and without a notebook."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from typing import Any

import pytest

from rueda.errors import LabError
from rueda.labs.catalogue import LABS
from rueda.labs.explore import Control, Exploration, figure
from rueda.labs.exporting import page
from rueda.labs.questions import Question
from rueda.labs.showing import Code, Text, stored
from rueda.report.model import Table
from rueda.report.plot import Plot


def draw(batch: int, word: str) -> list[Any]:
    plot = Plot(name="plot", title=f"batch {batch}", traces=[{"x": [1, 2], "y": [batch, 3]}])
    return [plot, Text(f"**{word}** & `x < y`"), Table(title="t", heads=["a"], rows=[["<b>"]]), Code("if a < b:\n  c")]


def moving() -> Exploration:
    return Exploration(
        "moving", draw, batch=Control("batch", (1, 8, 64), start=8), word=Control("word", ("one", "two"))
    )


def frames_in(text: str) -> Any:
    packed = re.search('id="frames">([^<]*)<', text)
    assert packed is not None
    return json.loads(gzip.decompress(base64.b64decode(packed[1])))["sections"]


def test_the_static_page_holds_every_combination() -> None:
    shown = moving().show({"batch": 8, "word": "two"})
    text = page(LABS[0], [shown, figure("still", Text("still"))])
    found = frames_in(text)
    assert {key: len(frames) for key, frames in found.items()} == {"moving": 6, "still": 1}
    assert 'min="0" max="2" step="1" value="1" data-texts="1|8|64"' in text
    assert "<option selected>one</option><option>two</option>" in text
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", re.sub(r"<script.*?</script>", "", text, flags=re.S))
    assert "default-src 'none'" in text


def test_texts_are_escaped() -> None:
    shown = moving().show({"batch": 1, "word": "<i>"})._mime_()[1]
    assert "<i>" not in shown and "<b>" not in shown
    framed = re.search('srcdoc="([^"]*)"', shown)
    assert framed is not None
    data = re.search(r'id="data">(.*?)</script>', html.unescape(framed[1]), flags=re.S)
    assert data is not None
    texts = " ".join(str(one) for one in json.loads(data[1])["shared"])
    assert "<b>&lt;i&gt;</b> &amp; <code>x &lt; y</code>" in texts and ">&lt;b&gt;</td>" in texts


def test_live_values_reach_the_library() -> None:
    plot = moving().show({"batch": 64, "word": "two"}).drawn[0]  # type: ignore[index]
    assert plot.title == "batch 64"


def test_too_many_combinations() -> None:
    many = Control("n", range(30))
    with pytest.raises(LabError, match="at most 400 combinations, got 900"):
        Exploration("many", draw, batch=many, word=many)
    fewer = Control("n", range(30), export=(1, 2))
    assert len(Exploration("fewer", draw, batch=fewer, word=many).combinations()) == 60


def test_mistakes() -> None:
    with pytest.raises(LabError, match="letters, digits and hyphens"):
        Exploration("No Key", draw)
    with pytest.raises(LabError, match="a key that is used once"):
        page(LABS[0], [figure("a", Text("x")), figure("a", Text("y"))])
    with pytest.raises(LabError, match=r"Markdown or a block of rueda\.labs"):
        page(LABS[0], [object()])
    with pytest.raises(LabError, match="choices, or a unit"):
        Question("1.x", "?")
    with pytest.raises(LabError, match="one in ANSWERS"):
        Question("1.nothing", "?", unit="m").reply("1")


def test_the_source_is_named() -> None:
    source = stored("docs/results/x", {"commit": "0123456789abcdef"})
    shown = figure("a", Text("x"), source=source)
    assert "docs/results/x, commit 0123456789ab" in shown.static()
    assert "docs/results/x, commit 0123456789ab" in shown._mime_()[1]
    assert "Computed by the library when this page was made" in figure("b", Text("x")).static()
