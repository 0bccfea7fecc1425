"""Lab 1 in a real browser: live and from disk; wide, on a phone, dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frameworks.labs.browsing import Page, served, started_browser
from rueda.labs.catalogue import lab
from rueda.labs.exporting import export_lab

PHONE = {"viewport": {"width": 390, "height": 844}}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_lab(lab(1), tmp_path_factory.mktemp("lab") / "lab 1.html")


def curve(place: Any, name: str) -> Any:
    return place.locator(f'[data-figure="{name}"]').evaluate(
        "(place) => JSON.stringify([...place.data[0].y].slice(0, 20))"
    )


def test_live(browser: Any, tmp_path: Path) -> None:
    with served(lab(1), tmp_path) as address:
        page = Page(browser, address)
        frame = page.frame("hand")
        assert "Mean squared error" in frame.locator("h3").inner_text()
        # A slider changes the figure.
        before = frame.locator("h3").inner_text()
        slider = page.page.get_by_role("slider").first
        slider.focus()
        slider.press("ArrowRight")
        frame.get_by_text(before, exact=True).wait_for(state="detached")
        # A wrong answer, another, the right one.
        form = page.page.locator("marimo-form").filter(has_text="lowest loss")
        replies = []
        for given in ("50", "60", "95"):
            form.locator("input").fill(given)
            form.get_by_role("button", name="Check").click()
            right = "true" if given == "95" else "false"
            shown = page.page.locator(f'.rueda-reply[data-right="{right}"]').first
            shown.wait_for()
            page.page.wait_for_function(
                "(old) => document.querySelector('.rueda-reply').innerText !== old", arg=(replies or [""])[-1]
            )
            replies.append(page.page.locator(".rueda-reply").first.inner_text())
        assert "Try w = 10" in replies[0] and "just below 100" in replies[1] and "Right." in replies[2]
        assert (tmp_path / "labs" / "1.lowest-loss.json").is_file()
        # A surface is drawn, and stays the same element when the slider moves.
        paths = page.frame("paths")
        paths.locator('[data-figure="surface"] canvas').first.wait_for()
        assert page.errors == []
        assert {address.split("?")[0].rstrip("/")} >= {
            "/".join(url.split("/")[:3]) for url in page.requests if url.startswith("http")
        }
        page.close()


def test_from_disk(browser: Any, exported: Path) -> None:
    page = Page(browser, exported.as_uri(), viewport={"width": 1200, "height": 900})
    stage = page.stage("stable")
    before = curve(stage, "at-rate")
    slider = stage.locator("input")
    slider.evaluate(
        "(input) => { input.value = input.max; input.dispatchEvent(new Event('input', { bubbles: true })); }"
    )
    stage.get_by_text("diverges").first.wait_for()
    assert curve(stage, "at-rate") != before
    assert stage.locator("output").inner_text() == "1.1"
    form = page.page.locator("form.question").filter(has_text="largest stable learning rate")
    for given, right, words in (
        ("0.5", "false", "Divide 2"),
        ("x", "false", "a number"),
        ("0.1", "false", "0.98"),
        ("0.025", "true", "2 divided"),
    ):
        form.locator("input").fill(given)
        form.locator("button").click()
        reply = form.locator(f'.reply[data-right="{right}"]').filter(has_text=words)
        reply.wait_for()
    choice = page.page.locator("form.question").filter(has_text="wandering")
    for text, words in (("more epochs", "Not yet"), ("data without noise", "all points lie on one line")):
        choice.get_by_label(text).check()
        choice.locator("button").click()
        choice.locator(".reply").filter(has_text=words).wait_for()
    assert "2 of" in page.page.locator("#progress").inner_text()
    page.stage("paths").locator("canvas").first.wait_for()
    assert page.errors == []
    assert [url for url in page.requests if not url.startswith("blob:null/")] == [exported.as_uri()]
    page.close()


@pytest.mark.parametrize("look", [PHONE, {**PHONE, "color_scheme": "dark"}], ids=["phone", "dark"])
def test_on_a_phone(browser: Any, exported: Path, look: dict[str, Any]) -> None:
    page = Page(browser, exported.as_uri(), **look)
    page.stage("hand")
    assert page.page.evaluate("document.documentElement.scrollWidth") == 390
    ground = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(20, 23, 26)") == ("color_scheme" in look)
    assert page.errors == []
    page.close()
