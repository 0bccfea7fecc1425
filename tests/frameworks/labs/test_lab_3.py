"""Lab 3 in a real browser: live and from disk; on a phone, dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frameworks.labs.browsing import Page, served, started_browser
from rueda.labs.catalogue import lab
from rueda.labs.explore import Shown
from rueda.labs.exporting import export_lab
from rueda.labs.showing import parts_of

PHONE = {"viewport": {"width": 390, "height": 844}}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page with the trainings of the initial choices only: all of them would take more than a minute."""
    trained = {"gap", "scaled", "norms", "updates", "layers", "between", "tuning", "noise", "speed"}
    whole = Shown.frames

    def frames(shown: Shown) -> list[list[dict[str, Any]]]:
        one = shown.exploration
        if one.key not in trained:
            return whole(shown)
        return [parts_of(one.draw(**one.start), one.key)] * len(one.combinations())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shown, "frames", frames)
        return export_lab(lab(3), tmp_path_factory.mktemp("lab") / "lab 3.html")


def test_live(browser: Any, tmp_path: Path) -> None:
    with served(lab(3), tmp_path) as address:
        page = Page(browser, address, viewport={"width": 1200, "height": 900})
        # A slider changes the figure.
        frame = page.frame("regimes")
        frame.get_by_text("Twice the batch saves 25% of the updates.").wait_for()
        slider = page.page.get_by_role("slider").nth(2)  # after the width: critical batch, then the batch
        slider.focus()
        slider.press("End")
        frame.get_by_text("Twice the batch saves 0% of the updates.").wait_for()
        # A training that was made here, now.
        gap = page.frame("gap")
        assert "naive" in gap.locator("table").inner_text() and "500" in gap.locator("table").inner_text()
        # A wrong answer, then the right one.
        form = page.page.locator("marimo-form").filter(has_text="in 12 epochs")
        for given, words in (("97", "8 x 512"), ("144", "One worker makes 1,164")):
            form.locator("input").fill(given)
            form.get_by_role("button", name="Check").click()
            page.page.locator(".rueda-reply").filter(has_text=words).wait_for()
        assert (tmp_path / "labs" / "3.updates.json").is_file()
        assert page.errors == []
        page.close()


def test_from_disk(browser: Any, exported: Path) -> None:
    page = Page(browser, exported.as_uri(), viewport={"width": 1200, "height": 900})
    stage = page.stage("tables")
    stage.get_by_text("docs/results/cifar10-8-workers/study.json").wait_for()
    stage.locator("select").select_option("glyphs, 8 workers")
    stage.get_by_text("docs/results/glyphs-8-workers/study.json").wait_for()
    form = page.page.locator("form.question").filter(has_text="noise scale of 968")
    for given, right in (("30", "false"), ("50", "true")):
        form.locator("input").fill(given)
        form.locator("button").click()
        form.locator(f'.reply[data-right="{right}"]').wait_for()
    assert page.errors == []
    page.close()


@pytest.mark.parametrize("look", [PHONE, {**PHONE, "color_scheme": "dark"}], ids=["phone", "dark"])
def test_on_a_phone(browser: Any, exported: Path, look: dict[str, Any]) -> None:
    page = Page(browser, exported.as_uri(), **look)
    page.stage("norms")
    assert page.page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.errors == []
    page.close()
