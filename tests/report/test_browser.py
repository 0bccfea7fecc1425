"""The page in a real browser: it draws, answers, stays inside its file, and runs nobody else's script."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chromium import CHROMIUM, FLAGS
from report.hostile import HOSTILE, write_hostile
from report.samples import TABLE, landscape_member, write_others, write_run, write_study
from rueda.records.landscape import Landscape
from rueda.report import write_figures, write_report

if CHROMIUM is None:
    pytest.skip("needs chromium: apt-get install chromium", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
FIGURES = ["techniques", "progress", "rate", "batch", "throughput", "steps", "surface", "contours"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


NO_PICTURES = """const later = setTimeout;
window.setTimeout = (call, wait, ...more) => (wait === 1500 ? 0 : later(call, wait, ...more));"""
"""the page takes a picture, for print, of a scene that has not changed for 1.5 s; in software that is dear"""


class Watch:
    """A page, with what it asked for and what it complained about."""

    def __init__(self, browser: Any, page: Path, *, pictures: bool = False, **context: Any) -> None:
        self.page = browser.new_context(**context).new_page()
        if not pictures:
            self.page.add_init_script(NO_PICTURES)
        self.page.set_default_timeout(120_000)  # scenes are drawn in software, perhaps on a busy machine
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._listen)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._note)
        self.address = page.as_uri()
        self.page.goto(self.address)
        self.settle()

    def _note(self, request: Any) -> None:
        if not request.url.startswith("blob:null/"):  # of the page itself: plotly makes its pictures so
            self.requests.append(request.url)

    def _listen(self, message: Any) -> None:
        if message.type == "error" or "WebGL contexts" in message.text:
            self.errors.append(message.text)

    def scene(self, place: Any) -> Any:
        """Scroll to a scene and wait until it is drawn; give its canvas."""
        place.evaluate("(place) => place.scrollIntoView()")  # software drawing may hold frames up: wait for none
        canvas = place.locator("canvas").first
        canvas.wait_for()
        return canvas

    def settle(self) -> None:
        self.page.wait_for_function("() => document.documentElement.dataset.ready")
        assert self.page.evaluate("document.documentElement.dataset.ready") == "true", self.page.inner_text("#trouble")


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Watch]]:
    """Open pages that are closed after the test: a scene costs time as long as it is there."""
    opened: list[Watch] = []

    def open_(page: Path, **context: Any) -> Watch:
        opened.append(Watch(browser, page, **context))
        return opened[-1]

    yield open_
    for watch in opened:
        watch.page.context.close()


@pytest.fixture(scope="module")
def full(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    """A page with all that a study has; each test leaves it as it was."""
    folder = tmp_path_factory.mktemp("full")
    write_others(write_study(folder, seeds=2))
    page, size = write_report([folder], folder / "report.html"), {"width": 1200, "height": 900}
    watch = Watch(browser, page, pictures=True, viewport=size)
    yield watch
    watch.page.context.close()


def test_it_loads_without_a_complaint_or_a_request(full: Watch) -> None:
    assert full.errors == []
    assert full.requests == [full.address]


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_has_marks(full: Watch, name: str) -> None:
    figure = full.page.locator(f"#s0-{name}")
    if name == "surface":
        size = full.scene(figure).bounding_box()
        assert size["width"] > 200 and size["height"] > 200
        assert figure.evaluate("(place) => place.data.length") == 5  # the surface and four paths
        assert figure.get_by_text("WebGL is not supported").count() == 0
        return
    marks = {"techniques": ".points path", "throughput": ".points path"}
    chosen = figure.locator(marks.get(name, ".lines path"))
    assert chosen.count() > 0
    assert all(box["width"] + box["height"] > 1 for box in (mark.bounding_box() for mark in chosen.all()) if box)


def test_a_line_a_run_and_a_dot_a_row(full: Watch) -> None:
    assert full.page.evaluate("document.getElementById('s0-progress').data.length") == 2 * len(TABLE)
    assert full.page.locator("#s0-techniques .points path").count() == len(TABLE)


def names(full: Watch) -> list[str]:
    return [cell.inner_text() for cell in full.page.locator("table.sortable").first.locator("tbody b").all()]


def test_the_table_sorts(full: Watch) -> None:
    def click(title: str) -> None:
        full.page.locator("table.sortable").first.get_by_role("button", name=title, exact=True).click()

    measured = sorted((row for row in TABLE if row[1] is not None), key=lambda row: row[1] or 0)
    click("test accuracy")
    assert names(full) == [*[row[0] for row in reversed(measured)], "linear-scaling"]  # largest first
    click("test accuracy")
    assert names(full) == [*[row[0] for row in measured], "linear-scaling"]  # what was not measured stays last
    assert full.page.locator("th[aria-sort]").count() == 1
    click("images/s")
    assert names(full) == [row[0] for row in sorted(TABLE, key=lambda row: -row[2])]
    click("technique")
    assert names(full) == sorted(row[0] for row in TABLE)


def test_one_switch_changes_the_axis(full: Watch) -> None:
    reach = "Math.max(...document.getElementById('s0-progress').data[0].x)"
    title = "document.getElementById('s0-progress').layout.xaxis.title.text"
    measure = "document.getElementById('s0-progress').layout.yaxis.title.text"
    assert (full.page.evaluate(reach), full.page.evaluate(measure)) == (12, "test accuracy")
    full.page.locator("[data-view=updates]").click()
    assert full.page.evaluate(reach) == 1152
    full.page.locator("[data-view=seconds]").click()
    assert full.page.evaluate(reach) == pytest.approx(12 * 49152 / 5200, rel=1e-4)
    assert full.page.evaluate(title) == "seconds of training (rehearsed runs: of one process)"
    full.page.locator("[data-view=train_accuracy]").click()
    assert full.page.evaluate(measure) == "training accuracy"
    full.page.locator("[data-view=test_accuracy]").click()
    full.page.locator("[data-view=epochs]").click()
    assert full.page.evaluate(reach) == 12


def test_a_name_hides_its_lines_and_one_long_row_does_not_squeeze_the_others(full: Watch) -> None:
    def shown() -> tuple[str, float]:
        return tuple(  # type: ignore[return-value]
            full.page.evaluate(
                """() => { const axis = document.getElementById('s0-progress')._fullLayout.xaxis;
                return [axis.type, (axis.d2p(12) - axis.d2p(1)) / axis._length]; }"""
            )
        )

    def lines() -> int:
        return int(full.page.evaluate("document.getElementById('s0-progress').data.length"))

    def labels() -> int:
        annotations = "(document.getElementById('s0-progress').layout.annotations || [])"
        return int(full.page.evaluate(f"{annotations}.filter((one) => one.text).length"))

    chips = {chip.inner_text(): chip for chip in full.page.locator(".chip").all()}
    chips["naive"].click()
    assert (lines(), chips["naive"].get_attribute("aria-pressed")) == (2 * len(TABLE) - 2, "false")
    chips["naive"].click()
    named, (kind, share) = labels(), shown()  # the others end at epoch 12, one at 96
    assert lines() == 2 * len(TABLE) and named > 0 and kind == "linear" and share > 0.8
    longest = chips.pop("longer-training")
    for chip in chips.values():
        chip.click()
    kind, share = shown()  # alone, it is shown whole
    assert kind == "linear" and 0.1 < share < 0.13
    longest.click()
    assert (lines(), labels()) == (0, 0)
    for chip in (longest, *chips.values()):
        chip.click()
    assert (lines(), labels()) == (2 * len(TABLE), named)


def hover(watch: Watch, figure: str, curve: int) -> str:
    watch.page.wait_for_timeout(120)  # plotly answers no more often
    watch.page.evaluate(f"Plotly.Fx.hover('{figure}', [{{curveNumber: {curve}, pointNumber: 0}}])")
    return str(watch.page.locator(f"#{figure} .hoverlayer").text_content())


def test_hover_shows_the_recipe(full: Watch) -> None:
    shown = hover(full, "s0-progress", 2)
    for words in (
        "naive",
        "8 × 512 = 4,096 examples an update",
        "sgd, rate 0.05, linear scaling",
        "seed 0",
        "rehearsed",
    ):
        assert words in shown
    assert "test accuracy" in shown


def test_dark_differs_in_page_and_figures(full: Watch) -> None:
    def colours() -> list[str]:
        return [
            full.page.evaluate("getComputedStyle(document.body).backgroundColor"),
            full.page.evaluate("document.getElementById('s0-progress').layout.font.color"),
            full.page.evaluate("document.getElementById('s0-techniques').data[0].marker.color"),
        ]

    light = colours()
    full.page.emulate_media(color_scheme="dark")
    full.page.wait_for_timeout(50)
    full.settle()
    dark = colours()
    full.page.emulate_media(color_scheme="light")
    full.page.wait_for_timeout(50)
    full.settle()
    assert all(one != other for one, other in zip(light, dark, strict=True))
    assert colours() == light


def test_a_phone_scrolls_down_only(full: Watch) -> None:
    full.page.set_viewport_size({"width": 390, "height": 844})
    full.page.wait_for_timeout(50)
    full.settle()
    assert full.page.evaluate("document.documentElement.scrollWidth") <= 390
    for name in FIGURES:
        if name == "surface":
            full.scene(full.page.locator("#s0-surface"))
        box = full.page.locator(f"#s0-{name} .svg-container").bounding_box()
        assert 250 < box["width"] <= 390, name
    box = full.page.locator(".box").first
    assert box.evaluate("(place) => place.scrollWidth > place.clientWidth")  # the table scrolls in its box
    for verdict in box.locator(".verdict").all():  # but verdicts are seen without scrolling
        place = verdict.bounding_box()
        assert place["x"] + place["width"] < 390 - 14
    full.page.set_viewport_size({"width": 1200, "height": 900})
    full.settle()


def test_hostile_names_do_not_run(open_page: Any, tmp_path: Path) -> None:
    watch = open_page(write_report([write_hostile(tmp_path / "study")], tmp_path / "report.html"))
    shown = [hover(watch, "s0-progress", curve) for curve in range(len(HOSTILE))]
    hover(watch, "s0-techniques", 0)
    assert "<img src=x onerror=window.pwned=1>" in shown[1]
    assert '<a href="javascript:window.pwned=1">click</a>' in shown[4]
    for index in range(1, 6):
        watch.page.locator(".chip").nth(index).click()
    watch.page.locator("table.sortable button").first.click()
    assert watch.page.evaluate("typeof window.pwned") == "undefined"
    assert (
        watch.page.locator("body a, body img, iframe, object, embed, [onerror], [onload], [onmouseover]").count() == 0
    )
    assert watch.page.locator("svg a").count() == 0
    assert watch.page.title() == HOSTILE[0] + " on 8 workers"
    assert (watch.errors, watch.requests) == ([], [watch.address])
    # Even a script that got into the page would not run, and nothing could be fetched.
    watch.page.evaluate(
        "() => { const one = document.createElement('script'); one.textContent = 'window.pwned = 1';"
        " document.body.append(one); const two = document.createElement('img');"
        " two.setAttribute('onerror', 'pwned = 1'); two.src = 'http://127.0.0.1:9/x.png'; document.body.append(two); }"
    )
    watch.page.wait_for_timeout(200)
    assert watch.page.evaluate("typeof window.pwned") == "undefined"
    assert len(watch.errors) >= 2


def test_runs_alone_and_figures_as_png(open_page: Any, tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "one", workers=1, rehearsed=False)
    write_run(tmp_path / "runs" / "two", final=None, steps=False)
    for index in range(3, 26):
        write_run(tmp_path / "runs" / f"a-run-with-a-longer-name-{index}", epochs=2, steps=False, rehearsed=False)
    page = write_report([tmp_path / "runs"], tmp_path / "report.html")
    watch = open_page(page)
    assert [place.get_attribute("data-figure") for place in watch.page.locator(".plot").all()] == [
        *FIGURES[1:4],
        "speed",
    ]
    assert watch.errors == []
    # On paper no legend scrolls: all 25 names are there, inside the figure.
    grown = watch.page.evaluate(
        """async () => { const place = document.body.appendChild(document.createElement('div'));
        const figure = forPaper(() => onPaper(build('s0', 'progress')));
        await Plotly.newPlot(place, figure.traces, figure.layout);
        const frame = place.querySelector('.main-svg').getBoundingClientRect();
        const boxes = [...place.querySelectorAll('.legendtext')].map((one) => one.getBoundingClientRect());
        const clip = place.querySelector('.legend clipPath rect, clipPath[id^=legend] rect').getBoundingClientRect();
        return [boxes.length, Math.max(...boxes.map((one) => one.bottom)) <= frame.bottom,
            Number(place.querySelector('.scrollbar').getAttribute('height') || 0), figure.layout.height,
            place._fullLayout._size.h]; }"""
    )
    assert grown[:3] == [25, True, 0] and grown[4] > 250
    files = write_figures(page, tmp_path / "png")
    assert int.from_bytes((tmp_path / "png" / "s0-test-accuracy-epochs.png").read_bytes()[20:24], "big") == 2 * grown[3]
    axes = [f"s0-test-accuracy-{axis}.png" for axis in ("epochs", "updates", "seconds")]
    assert [file.name for file in files] == [*axes, "s0-rate.png", "s0-batch.png", "s0-speed.png"]
    for file in files:
        content = file.read_bytes()
        assert content.startswith(b"\x89PNG")
        assert int.from_bytes(content[16:20], "big") == 1800


@pytest.mark.parametrize("width", [1200, 390])
def test_a_gallery_of_landscapes(open_page: Any, tmp_path: Path, width: int) -> None:
    names = ["one-worker", "@red", "a¶b", "repaired"]  # a name is a name, not a colour or a new line
    members = tuple(landscape_member(name) for name in names)
    Landscape(task="t", members=members).save(tmp_path / "landscape.json")
    page = write_report([tmp_path], tmp_path / "report.html")
    watch = open_page(page, viewport={"width": width, "height": 800})
    assert watch.errors == [] and watch.requests == [watch.address]
    assert watch.page.evaluate("document.documentElement.scrollWidth") == width  # nothing runs over the edge
    shown = "(place) => place.data.filter((one) => one.visible && one.type == 'contour').length"
    ranges = "(place) => place._fullLayout.scene ? place._fullLayout.scene.zaxis.title.text : ''"
    for name in ("landscape-surface", "landscape-contours"):
        place = watch.page.locator(f"#s0-{name}")
        figure = watch.page.locator("figure", has=place)
        for button in figure.get_by_role("button").all():  # inside the page, readable
            box = button.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= width
        if name.endswith("contours"):
            headings = place.locator(".annotation-text").all_text_contents()
            assert [name for name in names if any(name in text for text in headings)] == names
        figure.get_by_role("button", name="test error").click()
        assert figure.get_by_role("button", name="test error").get_attribute("aria-pressed") == "true"
        visible = place.evaluate("(place) => place.data.map((one) => one.visible)")
        view = "(place, name) => sections.s0.plots[name].switches[name][3].traces.map((one) => one.visible)"
        wanted = place.evaluate(view, name)
        assert visible == wanted and sum(map(bool, visible)) >= len(members)
        heights = place.evaluate("(place) => place._fullLayout.height")
        assert (heights > 1200) == (width < 640)  # one above the other on a phone
        if name.endswith("surface"):
            assert place.evaluate(ranges) == "error"
        else:
            assert place.evaluate(shown) == len(members)
    assert watch.errors == []


DRAWN = """(place) => { // the height of the first line in the middle of each epoch, read from what is drawn
    const path = place.querySelector('.lines path'), { xaxis, yaxis } = place._fullLayout;
    const length = path.getTotalLength(), found = [];
    for (let at = 0; at <= length; at += 0.25) {
        const point = path.getPointAtLength(at), epoch = xaxis.p2d(point.x);
        if (Math.abs(epoch % 1 - 0.5) < 0.01) found[Math.floor(epoch)] = yaxis.p2d(point.y);
    }
    return found; }"""


def test_batches_ticks_and_long_names(open_page: Any, tmp_path: Path) -> None:
    batches = [64, 128, 256, 256, 512]  # an epoch's row tells what was used up to its end
    run = write_run(tmp_path / "grown" / "run", epochs=5, steps=False)
    change_rows(
        run / "metrics.jsonl", lambda row: {"global_batch": (batch := batches[row["epoch"] - 1]), "rate": batch / 1000}
    )
    write_run(tmp_path / "one" / "run", task="short", epochs=1, steps=False)
    rows = [("one-worker", 0.881, 5000), ("naive", 0.874, 5000)]
    table = [*rows, *[("very-long-technique-name-" * 6 + str(index), 0.878, 5000) for index in range(3)]]
    write_study(tmp_path / "study", seeds=1, table=table)
    for metrics in (tmp_path / "study" / "runs").glob("*/metrics.jsonl"):
        change_rows(
            metrics, lambda row: {"test_accuracy": 0.87 + row["epoch"] / 1000} if row["kind"] == "epoch" else {}
        )
    page = write_report([tmp_path / name for name in ("study", "grown", "one")], tmp_path / "report.html")
    watch = open_page(page, viewport={"width": 390, "height": 900})
    for width in (390, 1200):
        watch.page.set_viewport_size({"width": width, "height": 900})
        watch.page.wait_for_timeout(50)
        watch.settle()
        for ticks in ("#s0-progress .ytick text", "#s0-techniques .xtick text"):
            labels = watch.page.locator(ticks).all_text_contents()
            assert len(labels) == len(set(labels)) >= 2, labels
        names = watch.page.locator("#s0-techniques .ytick text").all_text_contents()
        assert len(set(names)) == 5  # still told apart
        assert watch.page.locator("#s0-techniques").evaluate("(place) => place._fullLayout._size.w") > width / 4
        assert watch.page.evaluate("document.documentElement.scrollWidth") == width
    keys = {watch.page.locator(f"[data-section={key}]").inner_text().split("\n")[0]: key for key in ("s1", "s2")}
    grown, short = watch.page.locator(f"#{keys['glyphs-cnn']}-batch"), watch.page.locator(f"#{keys['short']}-batch")
    assert grown.evaluate(DRAWN) == pytest.approx(batches, rel=0.02)
    rates = watch.page.locator(f"#{keys['glyphs-cnn']}-rate").evaluate(DRAWN)
    assert rates == pytest.approx([batch / 1000 for batch in batches], rel=0.02, abs=0.003)
    assert short.evaluate(DRAWN) == pytest.approx([4096], rel=0.02)  # one epoch is a line, too
    assert watch.errors == []


def change_rows(metrics: Path, changes: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps(row | changes(row)) + "\n" for row in rows))


def test_print_is_light_and_whole(full: Watch) -> None:
    page = full.page
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(50)
    full.settle()
    full.scene(page.locator("#s0-surface"))
    page.wait_for_function("() => document.querySelectorAll('.still').length == 1")
    page.locator("#s0-progress").scroll_into_view_if_needed()
    hover(full, "s0-progress", 0)
    page.evaluate(
        """() => { const place = document.getElementById('s0-progress');
        addEventListener('beforeprint', () => { window.atPrint = [place.layout.font.color,
            place.querySelectorAll('.legendtext').length, place._fullLayout.width]; }); }"""
    )
    dark = page.evaluate("document.getElementById('s0-progress').layout.font.color")
    assert page.pdf(format="A4").startswith(b"%PDF")  # a real print: the figures were ready when it began
    assert page.evaluate("window.atPrint") == ["#1b1f24", len(TABLE), 900]
    page.wait_for_timeout(50)
    full.settle()
    now = page.evaluate(
        "(() => { const place = document.getElementById('s0-progress');"
        " return [place.layout.font.color, place.querySelectorAll('.legendtext').length]; })()"
    )
    assert now == [dark, 0]  # and the screen is as it was
    page.set_viewport_size({"width": 703, "height": 1000})  # A4 without its margins
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(27, 31, 36)"
    assert page.locator("#s0-progress .legendtext").first.is_visible()
    assert not page.locator("#s0-progress .hoverlayer").is_visible()
    assert page.locator(".still").is_visible() and not page.locator("#s0-surface").is_visible()
    reach = (
        "Math.max(...[...document.querySelectorAll('table, .main-svg')].map((o) => o.getBoundingClientRect().right))"
    )
    assert page.evaluate(reach) <= 703
    assert full.errors == []
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen", color_scheme="light")
    page.set_viewport_size({"width": 1200, "height": 900})
    full.settle()


def test_more_scenes_than_a_browser_keeps(open_page: Any, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        bare: dict[str, Any] = {"lines": None, "interpolation": None}
        members = tuple(replace(landscape_member(f"{name}{index}"), **bare) for index in range(3))
        (tmp_path / name).mkdir()
        Landscape(task=name, members=members).save(tmp_path / name / "landscape.json")
    page = write_report([tmp_path / name for name in "abc"], tmp_path / "report.html")
    watch = open_page(page, viewport={"width": 340, "height": 300})  # small: drawn in software
    places = watch.page.locator(".plot.scene").all()
    assert len(places) == 6  # of three scenes each: more than the 16 that a browser keeps
    for place in [places[0], places[2], places[4], places[0]]:  # nine scenes: one more than are kept, then again
        watch.scene(place)
        lost = "(place) => [...place.querySelectorAll('canvas')].map((one) => one.getContext('webgl').isContextLost())"
        assert place.evaluate(lost) == [False] * 3
    assert watch.errors == []  # "Too many active WebGL contexts"
