"""The page in a real browser: it draws, answers, stays inside its file, and runs nobody else's script."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from report.hostile import HOSTILE, write_hostile
from report.samples import TABLE, landscape_member, write_others, write_run, write_study
from rueda.records.landscape import Landscape
from rueda.report import write_figures, write_report

CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("needs chromium: apt-get install chromium", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")

FLAGS = [
    *("--headless", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--no-first-run", "--enable-unsafe-swiftshader"),
    *(["--no-sandbox"] if os.geteuid() == 0 else []),
]
FIGURES = ["techniques", "progress", "rate", "batch", "speed", "throughput", "steps", "surface", "contours"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


class Watch:
    """A page, with what it asked for and what it complained about."""

    def __init__(self, browser: Any, page: Path, **context: Any) -> None:
        self.page = browser.new_context(**context).new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.address = page.as_uri()
        self.page.goto(self.address)
        self.settle()

    def settle(self) -> None:
        self.page.wait_for_function("document.documentElement.dataset.ready", timeout=60_000)
        assert self.page.evaluate("document.documentElement.dataset.ready") == "true", self.page.inner_text("#trouble")


@pytest.fixture(scope="module")
def full(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Watch:
    folder = tmp_path_factory.mktemp("full")
    write_others(write_study(folder, seeds=2))
    return Watch(browser, write_report([folder], folder / "report.html"), viewport={"width": 1200, "height": 900})


def test_it_loads_without_a_complaint_or_a_request(full: Watch) -> None:
    assert full.errors == []
    assert full.requests == [full.address]


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_has_marks(full: Watch, name: str) -> None:
    figure = full.page.locator(f"#s0-{name}")
    if name == "surface":
        size = figure.locator("canvas").first.bounding_box()
        assert size["width"] > 200 and size["height"] > 200
        assert figure.evaluate("(place) => place.data.length") == 5  # the surface and four paths
        assert figure.get_by_text("WebGL is not supported").count() == 0
        return
    marks = {"speed": ".bars .point path", "techniques": ".points path", "throughput": ".points path"}
    chosen = figure.locator(marks.get(name, ".lines path"))
    assert chosen.count() > 0
    assert all(box["width"] + box["height"] > 1 for box in (mark.bounding_box() for mark in chosen.all()) if box)


def test_a_line_a_run_and_a_dot_a_row(full: Watch) -> None:
    assert full.page.evaluate("document.getElementById('s0-progress').data.length") == 2 * len(TABLE)
    assert full.page.locator("#s0-techniques .points path").count() == len(TABLE)
    assert full.page.locator("#s0-speed .bars .point path").count() == len(TABLE)


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
    full.page.locator("[data-axis=updates]").click()
    assert full.page.evaluate(reach) == 1152
    full.page.locator("[data-axis=seconds]").click()
    assert full.page.evaluate(reach) == pytest.approx(12 * 49152 / 5200, rel=1e-4)
    assert full.page.evaluate(title) == "seconds of training (rehearsed runs: of one process)"
    full.page.locator("[data-measure=train_accuracy]").click()
    assert full.page.evaluate(measure) == "training accuracy"
    full.page.locator("[data-measure=test_accuracy]").click()
    full.page.locator("[data-axis=epochs]").click()
    assert full.page.evaluate(reach) == 12


def test_a_name_hides_its_lines(full: Watch) -> None:
    count = "document.getElementById('s0-progress').data.length"
    chip = full.page.locator(".chip", has_text="naive")
    chip.click()
    assert (full.page.evaluate(count), chip.get_attribute("aria-pressed")) == (2 * len(TABLE) - 2, "false")
    chip.click()
    assert full.page.evaluate(count) == 2 * len(TABLE)


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
        box = full.page.locator(f"#s0-{name} .svg-container").bounding_box()
        assert 250 < box["width"] <= 390, name
    box = full.page.locator(".box").first
    assert box.evaluate("(place) => place.scrollWidth > place.clientWidth")  # the table scrolls in its box
    full.page.set_viewport_size({"width": 1200, "height": 900})
    full.settle()


def test_hostile_names_do_not_run(browser: Any, tmp_path: Path) -> None:
    watch = Watch(browser, write_report([write_hostile(tmp_path / "study")], tmp_path / "report.html"))
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


def test_runs_alone_and_figures_as_png(browser: Any, tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "one", workers=1, rehearsed=False)
    write_run(tmp_path / "runs" / "two", final=None, steps=False)
    page = write_report([tmp_path / "runs"], tmp_path / "report.html")
    watch = Watch(browser, page)
    assert [place.get_attribute("data-figure") for place in watch.page.locator(".plot").all()] == FIGURES[1:5]
    assert watch.errors == []
    files = write_figures(page, tmp_path / "png")
    axes = [f"s0-test-accuracy-{axis}.png" for axis in ("epochs", "updates", "seconds")]
    assert [file.name for file in files] == [*axes, "s0-rate.png", "s0-batch.png", "s0-speed.png"]
    for file in files:
        content = file.read_bytes()
        assert content.startswith(b"\x89PNG")
        assert int.from_bytes(content[16:20], "big") == 1800


@pytest.mark.parametrize("width", [1200, 390])
def test_a_gallery_of_landscapes(browser: Any, tmp_path: Path, width: int) -> None:
    members = tuple(landscape_member(name) for name in ("one-worker", "naive, 8", "naive, 64", "repaired"))
    Landscape(task="t", members=members).save(tmp_path / "landscape.json")
    page = write_report([tmp_path], tmp_path / "report.html")
    watch = Watch(browser, page, viewport={"width": width, "height": 800})
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
        figure.get_by_role("button", name="test error").click()
        assert figure.get_by_role("button", name="test error").get_attribute("aria-pressed") == "true"
        visible = place.evaluate("(place) => place.data.map((one) => one.visible)")
        wanted = place.evaluate("(place, name) => sections.s0.plots[name].views[3].visible", name)
        assert visible == wanted and sum(map(bool, visible)) >= len(members)
        heights = place.evaluate("(place) => place._fullLayout.height")
        assert (heights > 1200) == (width < 640)  # one above the other on a phone
        if name.endswith("surface"):
            assert place.evaluate(ranges) == "error"
        else:
            assert place.evaluate(shown) == len(members)
    assert watch.errors == []
