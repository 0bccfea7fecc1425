"""Files of other stages on the page: each kind has a reader, and what a reader gives is drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from report.samples import profile, write_others
from rueda.errors import RuedaError, RunError
from rueda.records.json_record import JsonRecord
from rueda.report.collect import collect
from rueda.report.kinds import READERS
from rueda.report.model import Section, Table
from rueda.report.page import render
from rueda.report.plot import Plot


@pytest.mark.parametrize("kind", READERS)
def test_every_kind_has_a_reader_that_refuses_rubbish_in_one_line(kind: type[JsonRecord], tmp_path: Path) -> None:
    assert callable(READERS[kind])
    for text in ("{", "[]", "{}", '{"format": 99}'):
        (tmp_path / kind.FILE).write_text(text)
        with pytest.raises(RuedaError) as error:
            collect([tmp_path])
        assert kind.FILE in str(error.value) and len(str(error.value).splitlines()) == 1


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


@pytest.mark.parametrize("name", ["profile.json", "throughput.json", "steps.json", "gd.json"])
def test_a_file_is_known_by_its_content(name: str, tmp_path: Path) -> None:
    write_others(tmp_path)
    profile().save(tmp_path / "profile.json")
    other = tmp_path / "elsewhere" / "glyphs.json"
    other.parent.mkdir()
    other.write_bytes((tmp_path / name).read_bytes())
    (section,) = collect([other])
    assert section.task in ("glyphs-cnn", "linear") and section.tables
    assert collect([other, other.resolve()])[0].title == section.title  # named twice, shown once
    assert len(collect([tmp_path / name])) == 2  # by its own name: all of its folder


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"kind": 3}', '{"kind": "landscapes"}', '{"steps": []}', "[" * 100_000]
)
def test_a_file_of_no_kind(text: str, tmp_path: Path) -> None:
    (tmp_path / "glyphs.json").write_text(text)
    with pytest.raises(RunError, match="a JSON file that Rueda wrote, got 'another file'") as error:
        collect([tmp_path / "glyphs.json"])
    assert len(str(error.value).splitlines()) == 1


def test_two_sections_never_have_one_heading(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_others(tmp_path / name)
        profile().save(tmp_path / name / "profile.json")
    titles = [section.title for section in collect([tmp_path])]
    assert titles == ["glyphs-cnn: a", "glyphs-cnn: b", "Profile of glyphs-cnn: a", "Profile of glyphs-cnn: b"]
