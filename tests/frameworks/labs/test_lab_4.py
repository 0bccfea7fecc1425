"""Lab 4 in a real browser: live and from disk; on a phone, dark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frameworks.labs.browsing import Page, playwright, served, started_browser
from rueda.labs.catalogue import lab
from rueda.labs.exporting import export_lab
from rueda.labs.lab_4 import planner

PHONE = {"viewport": {"width": 390, "height": 844}}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_lab(lab(4), tmp_path_factory.mktemp("lab") / "lab 4.html")


def test_live(browser: Any, tmp_path: Path) -> None:
    with served(lab(4), tmp_path) as address:
        page = Page(browser, address, viewport={"width": 1200, "height": 900})
        # A slider changes the figure.
        frame = page.frame("law")
        frame.get_by_text("54.9").wait_for()
        slider = page.page.get_by_role("slider").first
        slider.focus()
        slider.press("End")
        frame.get_by_text("54.9").wait_for(state="detached")
        # A wrong answer, another, the right one.
        form = page.page.locator("marimo-form").filter(has_text="1,000 petaflop/s-days")
        for given, words in (("1", "in one day"), ("2", "are done each day"), ("31.25", "about 31 days")):
            form.locator("input").fill(given)
            form.get_by_role("button", name="Check").click()
            page.page.locator(".rueda-reply").filter(has_text=words).wait_for()
        assert (tmp_path / "labs" / "4.days.json").is_file()
        # The planner is drawn.
        page.frame("plan").get_by_text("Recommended").first.wait_for()
        assert page.errors == []
        page.close()


def recommended(cluster: str, noise_scale: int) -> str:
    """Return what the library recommends, as the figure writes it."""
    found = re.search(r"Recommended: \*\*([\d,]+ workers)\*\*", repr(planner.plan_figure(cluster, noise_scale)))
    assert found is not None
    return found[1]


def test_from_disk(browser: Any, exported: Path) -> None:
    page = Page(browser, exported.as_uri(), viewport={"width": 1200, "height": 900})
    stage = page.stage("plan")
    before = stage.locator(".parts").inner_text()
    slider = stage.locator("input[type=range]")
    slider.evaluate(
        "(input) => { input.value = input.max; input.dispatchEvent(new Event('input', { bubbles: true })); }"
    )
    stage.get_by_text(recommended("dgx-h100", 8000), exact=True).first.wait_for()
    after = stage.locator(".parts").inner_text()
    assert stage.locator("output").inner_text() == "8,000" and after != before
    stage.locator("select").select_option("ethernet-25")
    playwright.expect(stage.locator(".parts")).not_to_have_text(after, use_inner_text=True)
    stage.get_by_text(recommended("ethernet-25", 8000), exact=True).first.wait_for()
    form = page.page.locator("form.question").filter(has_text="What is the goodput")
    for given, right in (("8000", "false"), ("4,000", "true")):
        form.locator("input").fill(given)
        form.locator("button").click()
        form.locator(f'.reply[data-right="{right}"]').wait_for()
    assert page.errors == []
    assert [url for url in page.requests if not url.startswith("blob:null/")] == [exported.as_uri()]
    page.close()


@pytest.mark.parametrize("look", [PHONE, {**PHONE, "color_scheme": "dark"}], ids=["phone", "dark"])
def test_on_a_phone(browser: Any, exported: Path, look: dict[str, Any]) -> None:
    page = Page(browser, exported.as_uri(), **look)
    page.stage("plan")
    assert page.page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.errors == []
    page.close()
