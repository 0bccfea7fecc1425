"""Lab 2 in a real browser: live, with scripts that run on two processes, and from disk; wide, on a phone, dark."""

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
    return export_lab(lab(2), tmp_path_factory.mktemp("lab") / "lab 2.html")


def test_live(browser: Any, tmp_path: Path) -> None:
    with served(lab(2), tmp_path) as address:
        page = Page(browser, address)
        # A slider changes the figure: at a batch of 128 the pipeline sends twice as much as at 64.
        traffic = page.frame("traffic")
        assert "batch 64" in traffic.locator("body").inner_text()
        slider = page.page.get_by_role("slider").first
        slider.focus()
        slider.press("ArrowRight")
        traffic.get_by_text("One step at batch 128, layers of 128 neurons").wait_for()
        # A script runs on two processes, and the next step of the slider runs the next script.
        ddp = page.frame("ddp")
        ddp.get_by_text("gradients-not-averaged").wait_for()
        assert "they have two models" in ddp.locator("body").inner_text()
        assert "stored run" not in ddp.locator("body").inner_text()
        assert "stored run" in page.frame("without").locator("body").inner_text()
        page.page.get_by_label("run").last.select_option("here, now")
        page.frame("without").get_by_text("stored run").wait_for(state="detached")
        page.frame("without").get_by_text("different-start").wait_for()
        # A wrong answer, then the right one.
        form = page.page.locator("marimo-form").filter(has_text="You double the batch")
        for given, right, words in (
            ("none of them", "false", "lines are level"),
            ("those of pipeline and tensor parallelism", "true", "Activations belong to examples"),
        ):
            form.get_by_text(given, exact=True).click()
            form.get_by_role("button", name="Check").click()
            page.page.locator(f'.rueda-reply[data-right="{right}"]').filter(has_text=words).wait_for()
        assert (tmp_path / "labs" / "2.doubled-batch.json").is_file()
        assert page.errors == []
        page.close()


def move(stage: Any, number: int, value: int) -> None:
    """Move a slider of a static page."""
    stage.locator("input").nth(number).evaluate(
        "(input, value) => { input.value = value; input.dispatchEvent(new Event('input', { bubbles: true })); }", value
    )


def test_from_disk(browser: Any, exported: Path) -> None:
    page = Page(browser, exported.as_uri(), viewport={"width": 1200, "height": 900})
    timeline = page.stage("iteration")
    assert "1 read." in timeline.inner_text()
    move(timeline, 0, 1)
    move(timeline, 1, 12)
    timeline.get_by_text("+ average the gradients.").wait_for()
    assert "The same iteration on two workers" in timeline.inner_text()
    steps = page.stage("horovod")
    move(steps, 0, 6)
    steps.get_by_text("The check finds no mistake").wait_for()
    assert "stored run" in steps.inner_text() and "hvd.broadcast_parameters" in steps.inner_text()
    form = page.page.locator("form.question").filter(has_text="DistributedSampler, batches of 32")
    for given, right, words in (("12", "false", "fills up"), ("11", "true", "334")):
        form.locator("input").fill(given)
        form.locator("button").click()
        form.locator(f'.reply[data-right="{right}"]').filter(has_text=words).wait_for()
    assert page.errors == []
    assert [url for url in page.requests if not url.startswith("blob:null/")] == [exported.as_uri()]
    page.close()


@pytest.mark.parametrize("look", [PHONE, {**PHONE, "color_scheme": "dark"}], ids=["phone", "dark"])
def test_on_a_phone(browser: Any, exported: Path, look: dict[str, Any]) -> None:
    page = Page(browser, exported.as_uri(), **look)
    for key in ("traffic", "iteration", "ddp", "shares", "conversion"):
        page.stage(key)
    assert page.page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.errors == []
    page.close()
