"""Files of other stages on the page: each kind has a reader, and what a reader gives is drawn."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from rueda.errors import RuedaError
from rueda.records.profile import AllReduceTime, Communication, NoiseScale, Profile, StepTime
from rueda.report.collect import collect
from rueda.report.kinds import KINDS
from rueda.report.model import Plot, Section, Table
from rueda.report.page import render


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_reader_that_refuses_rubbish_in_one_line(kind: str, tmp_path: Path) -> None:
    assert callable(import_module(f"rueda.report.{KINDS[kind]}").read)
    for text in ("{", "[]", "{}", '{"format": 99}'):
        (tmp_path / kind).write_text(text)
        with pytest.raises(RuedaError) as error:
            collect([tmp_path])
        assert kind in str(error.value) and len(str(error.value).splitlines()) == 1


def profile(task: str = "glyphs-cnn") -> Profile:
    def step(batch: int) -> StepTime:
        seconds = 0.004 + batch / 5000
        parts = {
            "data": 0.05 * seconds,
            "forward": 0.3 * seconds,
            "backward": 0.6 * seconds,
            "optimizer": 0.05 * seconds,
        }
        return StepTime(batch=batch, seconds=seconds, spread=0.02 * seconds, repeats=9, **parts)

    points = tuple(AllReduceTime(bytes=size, seconds=7e-4 + size / 1e9) for size in (4, 4096, 2**20, 2**24))
    link = Communication(workers=2, backend="gloo", points=points, latency=7e-4, bandwidth=1e9, residual=0.02)
    noise = NoiseScale(value=980, low=700, high=float("nan"), variance=98.0, square=0.1, step=200, steps=200)
    return Profile(
        task=task, device="cpu", threads=1, precision="float32", parameters=482_442, gradient_bytes=4 * 482_442,
        examples=50_000, recipe="", steps=tuple(step(batch) for batch in (16, 64, 256)), communication=(link,),
        noise=(noise,),
    )  # fmt: skip


def test_a_profile(tmp_path: Path) -> None:
    profile("<b>glyphs").save(tmp_path / "profile.json")
    (section,) = collect([tmp_path])
    page = render([section])
    assert "4,638 images a second at a local batch of 256" in page  # 256 / (0.004 + 256 / 5000)
    assert "980 examples (700 to infinity)" in page
    assert [plot.name for plot in section.plots] == [
        "profile-throughput", "profile-stages", "profile-exchange", "profile-noise",
    ]  # fmt: skip
    assert "&lt;b&gt;glyphs" in page and "<b>glyphs" not in page


def test_what_a_reader_gives_is_on_the_page() -> None:
    section = Section(title="<i>", task="t", told=["<b>Said."])
    section.tables.append(Table(title="<u>", heads=["a", "b"], rows=[["<s>", (2.0, "two")]]))
    section.plots.append(Plot(name="fit", title="<em>", traces=[{"y": [1], "name": "</script>"}], note="<q>"))
    page = render([section])
    assert 'data-figure="fit"' in page and 'data-value="2.0">two' in page
    shown, _, data = page.partition('<script type="application/json"')
    for tag in ("<i>", "<b>Said", "<u>", "<s>", "<em>", "<q>"):
        assert tag not in shown
    assert data.index("</script>") > data.index("fit")
