"""The page as text: rehearsed says so, test is not training, and no text of a file is markup."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from report.hostile import HOSTILE, write_hostile
from report.samples import write_json, write_others, write_run, write_study
from rueda.cli.report import report
from rueda.errors import RunError
from rueda.report import png, write_report
from rueda.report.escape import to_html, to_label, to_script
from rueda.report.png import find_browser


class Reader(HTMLParser):
    """Notes elements, attributes and the text of cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.rows: list[list[str]] = []
        self._cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._cell = True
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._cell = False

    def handle_data(self, data: str) -> None:
        if self._cell:
            self.rows[-1][-1] += data


def table(page: Path) -> list[dict[str, str]]:
    head, *rows = Reader(page.read_text()).rows
    return [dict(zip(head, row, strict=True)) for row in rows if len(row) == len(head)]


def test_the_table(tmp_path: Path) -> None:
    rows = table(write_report([write_study(tmp_path, seeds=2)], tmp_path / "report.html"))
    assert len(rows) == 12
    one, naive, scaling = rows[0], rows[1], rows[3]
    assert one["technique"].startswith("one-worker") and "rehearsed" not in one["technique"]
    assert one["images/s"] == "5,200"
    assert "rehearsed" in naive["technique"]
    assert naive["images/s"] == "6,100one process"  # never as that of eight machines
    assert naive["time"] == "1 min 37 sone process"
    assert naive["test accuracy"].replace("\xa0", " ") == "58.3 ± 0.4 %"
    assert naive["training accuracy"].replace("\xa0", " ") == "61.3 %"
    assert naive["against one worker"] == "−28.8 ✗ lost−30.0 to −27.6"
    assert (scaling["test accuracy"], scaling["against one worker"]) == ("–", "∞ diverged")


def test_training_accuracy_never_stands_in_for_test_accuracy(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("test_accuracy", "test_accuracy_spread", "against_one_worker", "verdict"))
    write_study(tmp_path, seeds=1, **nothing, train_accuracy=0.987)
    page = write_report([tmp_path], tmp_path / "report.html")
    row = table(page)[1]
    assert "test accuracy" not in row  # nothing was measured: no such column
    assert row["training accuracy"].replace("\xa0", " ") == "98.7 %"
    assert "No row has a test accuracy yet." in page.read_text()
    run = write_run(tmp_path / "run")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (run / "metrics.jsonl").write_text("".join(json.dumps({**row, "test_accuracy": None}) + "\n" for row in rows))
    assert "test accuracy" not in table(write_report([run], tmp_path / "run.html"))[0]


def test_tiles_say_what_they_count(tmp_path: Path) -> None:
    for seeds in (1, 2):
        text = write_report([write_study(tmp_path / str(seeds), seeds=seeds)], tmp_path / "report.html").read_text()
        *tiles, control = re.findall(r'<div class="tile.*?</strong><span>(.*?)</span>', text)
        assert len(tiles) == 3 and control == "no row of this study trains it"
        for tile in tiles:
            assert "test accuracy ± 0.4" in tile and ("one seed" in tile) == (seeds == 1)
            assert ("mean of 2 seeds" in tile) == (seeds == 2)
        assert ">8 workers, rehearsed: naive<" in text and ">1 worker: one-worker<" in text
        assert "The control is missing: no row trains one worker with lamb. Add it with --rows one-worker+lamb." in text


def test_a_control_that_would_repeat_one_worker_is_not_asked_for(tmp_path: Path) -> None:
    rows = [("naive", 0.583, 6100), ("linear-warmup", 0.92, 5000), ("one-worker+lamb", 0.87, 5200)]
    page = write_report(write_study(tmp_path, table=[*rows, ("one-worker", 0.871, 5200)]), tmp_path / "report.html")
    assert "control" not in re.sub(r"<(script|style).*?</\1>", "", page.read_text(), flags=re.DOTALL)
    names = [row["technique"].split(" ")[0] for row in table(page)]
    assert [next(n for n in ("one-worker+lamb", "one-worker", "naive", "linear-warmup") if name.startswith(n))
            for name in names] == ["one-worker", "one-worker+lamb", "naive", "linear-warmup"]  # fmt: skip


@pytest.mark.parametrize(
    ("best", "controls", "chosen", "missing"),
    [
        ("lamb", ["one-worker+batch-norm"], "one-worker+batch-norm", True),  # shares a part of the remedy
        ("lamb", ["one-worker+batch-norm", "one-worker+batch-norm+lamb"], "one-worker+batch-norm+lamb", False),
        ("lamb", ["one-worker+sqrt-scaling"], None, True),  # another remedy is no control
        ("batch-growth", ["one-worker+decay", "one-worker+batch-norm+decay"], "one-worker+batch-norm+decay", False),
        ("batch-growth", ["one-worker+batch-norm"], "one-worker+batch-norm", True),
    ],
)
def test_the_headline_has_the_control(
    tmp_path: Path, best: str, controls: list[str], chosen: str | None, missing: bool
) -> None:
    rows = [("one-worker", 0.871, 5200), ("naive", 0.583, 6100), (f"batch-norm+{best}", 0.92, 5000)]
    accuracies = zip(controls, (0.918, 0.915), strict=False)
    write_study(tmp_path, table=[*rows, *((name, accuracy, 5000) for name, accuracy in accuracies)])
    text = write_report(tmp_path, tmp_path / "report.html").read_text().replace("\xa0", " ")
    wanted = "batch-norm+decay" if best == "batch-growth" else "batch-norm+lamb"
    assert (f"The control is missing: no row trains one worker with {wanted}." in text) == missing
    assert f"91.8 ± 0.4 % of the strongest row of one worker, {controls[0]}; difference +0.2 points (" in text
    if chosen == controls[-1] and len(controls) > 1:
        assert f"One worker with {chosen.removeprefix('one-worker+')} reaches 91.5 ± 0.4 %." in text
    if chosen is not None:
        assert f'<div class="tile control"><span>control, 1 worker: {chosen}</span><strong>91.' in text


def test_the_headline_has_the_figure_of_fresh_seeds(tmp_path: Path) -> None:
    rows = [("one-worker", 0.871, 5200), ("naive", 0.583, 6100), ("batch-norm", 0.92, 5000), ("lars", 0.9, 5000)]
    write_study(tmp_path, table=[*rows, ("batch-norm (real)", 0.88, 5000)])
    study = json.loads((tmp_path / "study.json").read_text())
    for seeds, figure, said in (([0, 1], "92.0", "--confirm repeats it"), ([1000, 1001], "88.0", "of 2 fresh seeds.")):
        study["rows"][-1] |= {"seeds": seeds, "rehearsed": False}
        (tmp_path / "study.json").write_text(json.dumps(study))
        text = write_report(tmp_path, tmp_path / "report.html").read_text().replace("\xa0", " ")
        lead = text.partition('<p class="lead">')[2].partition("</p>")[0]
        assert f"({figure} ± 0.4 %, against 87.1" in lead and "the best of 2 remedies" in lead
        assert "batch-norm was chosen of 2 rows on test data" in text and said in text


def test_one_title_for_each_section(tmp_path: Path) -> None:
    write_study(tmp_path / "study", seeds=1)
    heading = re.compile(r"<h[12].*?>(.*?)</h[12]>")
    one = write_report([tmp_path / "study"], tmp_path / "page.html").read_text()
    assert heading.findall(one) == ["glyphs-cnn on 8 workers"]
    two = write_report([tmp_path / "study", write_run(tmp_path / "run")], tmp_path / "page.html").read_text()
    assert heading.findall(two) == ["Rueda <span>report</span>", "glyphs-cnn on 8 workers", "glyphs-cnn"]
    assert '<a href="#s1">glyphs-cnn</a>' in two and '<section id="s1"' in two


@pytest.mark.parametrize(("epochs", "said"), [(1, ">1 epoch. "), (5, ">5 epochs. ")])
def test_a_run_alone_is_not_each(tmp_path: Path, epochs: int, said: str) -> None:
    run = write_run(tmp_path / "run", epochs=epochs, steps=epochs > 1)
    text = write_report([run], tmp_path / "report.html").read_text()
    assert said in text and "epochs each" not in text
    noted = "as recorded during each epoch" if epochs > 1 else "by the recipe's schedule"
    assert f"After scaling and warm-up, {noted}." in html.unescape(text)


def test_what_is_missing_has_no_figure(tmp_path: Path) -> None:
    write_others(tmp_path)
    for name in ("gd.json", "steps.json"):
        (tmp_path / name).unlink()
    text = write_report([tmp_path], tmp_path / "report.html").read_text()
    assert re.findall(r'data-figure="(\w+)"', text) == ["throughput"]
    assert text.partition("<script")[0].count("<table") == 1


def test_the_policy_names_the_scripts_by_their_hashes(tmp_path: Path) -> None:
    text = write_report([write_run(tmp_path / "run")], tmp_path / "report.html").read_text()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    assert policy[1].startswith("default-src 'none'")
    allowed = re.findall(r"sha256-([^']+)'", policy[1])
    ours = re.search(r"<script>(.*?)</script>", text, re.DOTALL)
    packed = re.search(r'id="plotly">(.*?)</script>', text, re.DOTALL)
    assert ours and packed
    scripts = [gzip.decompress(base64.b64decode(packed[1])), ours[1].encode()]
    assert allowed == [base64.b64encode(hashlib.sha256(script).digest()).decode() for script in scripts]
    assert "'unsafe-eval'" not in policy[1] and "http" not in policy[1]
    assert len(text) < 2_300_000


def test_it_is_the_same_page_every_time(tmp_path: Path) -> None:
    write_study(tmp_path, seeds=1)
    pages = [write_report([tmp_path], tmp_path / name).read_bytes() for name in ("a.html", "b.html")]
    assert pages[0] == pages[1]


def test_a_study_that_has_just_begun(tmp_path: Path) -> None:
    write_json(
        tmp_path / "study.json", {"format": 1, "kind": "techniques", "task": "t", "workers": 8, "epochs": 3, "rows": []}
    )
    text = write_report(tmp_path, tmp_path / "report.html").read_text()  # one path needs no list
    assert "No row has a test accuracy yet." in text
    assert "data-figure" not in text.partition("<script")[0]


def test_hostile_text_is_text(tmp_path: Path) -> None:
    text = write_report([write_hostile(tmp_path / "study")], tmp_path / "report.html").read_text()
    calm = write_report([write_others(write_study(tmp_path / "calm"))], tmp_path / "calm.html").read_text()
    hostile, usual = Reader(text), Reader(calm)
    assert set(hostile.tags) <= set(usual.tags) | {"li", "ul", "details", "summary"}
    assert hostile.attributes <= usual.attributes
    assert hostile.tags.count("script") == usual.tags.count("script") == 3
    data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert data and not set(data[1]) & set("<>&\u2028\u2029")
    packed = json.loads(data[1])
    names = [trace["name"] for trace in packed["sections"]["s0"]["plots"]["progress"]["traces"]]
    names = [name if isinstance(name, str) else packed["shared"][name["#"]] for name in names]
    assert [html.unescape(name) for name in names][:2] == [f"{to_plain(name)} (rehearsed)" for name in HOSTILE[:2]]


def to_plain(text: str) -> str:
    return html.unescape(to_html(text))


@pytest.mark.parametrize("text", HOSTILE)
def test_escapes(text: str) -> None:
    for written in (to_html(text), to_label(text)):
        assert not set(written) & set("<>\u2028\u2029\u202e\x00")
    assert '"' not in to_html(text)
    script = to_script({text: [text, {"a": text}]})
    assert not set(script) & set("<>&\u2028\u2029")
    ((key, values),) = json.loads(script).items()
    assert key == values[0] == to_label(text)


def test_long_text_is_cut_in_labels() -> None:
    assert len(to_label("x" * 10_000)) == 300


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()
    app.command()(report)
    write_run(tmp_path / "run")
    done = CliRunner().invoke(app, [str(tmp_path / "run"), "-o", str(tmp_path / "deep" / "page.html")])
    assert done.exit_code == 0
    assert "page.html" in done.output
    assert (tmp_path / "deep" / "page.html").exists()
    monkeypatch.setenv("RUEDA_BROWSER", "no-such-browser")
    done = CliRunner().invoke(app, [str(tmp_path / "run"), "-o", str(tmp_path / "b.html"), "--png", str(tmp_path)])
    assert isinstance(done.exception, RunError)
    assert not (tmp_path / "b.html").exists()


def test_no_browser_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUEDA_BROWSER", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RunError, match="install Chromium") as caught:
        find_browser()
    assert "\n" not in str(caught.value)


def test_the_report_needs_no_torch() -> None:
    code = "import rueda.report, sys; sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'plotly')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    write_json(tmp_path / "file", 1)
    with pytest.raises(RunError, match="cannot write"):
        write_report([write_run(tmp_path / "run")], tmp_path / "file" / "report.html")


def test_the_browser_of_figures_does_not_need_shared_memory() -> None:
    """A container's /dev/shm has 64 MB by default, less than the browser takes for a page of figures."""
    assert "--disable-dev-shm-usage" in png._FLAGS
