"""Labs in a real browser: live, as marimo serves them, and as a static page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chromium import CHROMIUM, FLAGS
from ports import free_port
from rueda.labs.catalogue import Lab

if CHROMIUM is None:
    pytest.skip("needs chromium: apt-get install chromium", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")

MINUTES = 8  # four processes of tests share two cores, and a lab measures with workers of its own
"""how long is waited for anything: scenes are drawn in software, perhaps on a busy machine"""


@contextmanager
def started_browser() -> Iterator[Any]:
    """Start Chromium."""
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def served(lab: Lab, state: Path) -> Iterator[str]:
    """Open a lab as the command does, without a browser; give the address."""
    # Of a port that marimo chooses for two labs at once, one tells the address and the other one listens there.
    command = [sys.executable, "-m", "rueda", "lab", str(lab.number), "--no-browser", "--port", free_port()]
    environment = {**os.environ, "RUEDA_STATE": str(state), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if found := re.search(r"http://\S+", line):
                    yield found[0].replace("localhost", "127.0.0.1")
                    break
            else:
                raise AssertionError("marimo told no address")
        finally:
            process.terminate()


class Page:
    """A page, with what it asked for and what it complained about."""

    def __init__(self, browser: Any, address: str, **context: Any) -> None:
        self.page = browser.new_context(**context).new_page()
        self.page.set_default_timeout(MINUTES * 60_000)
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)

    def frame(self, key: str) -> Any:
        """Scroll to the frame of a figure of a live lab, and wait until it is drawn."""
        self.page.locator(f'iframe[title="{key}"]').evaluate("(frame) => frame.scrollIntoView({ block: 'center' })")
        found = self.page.locator(f'iframe[title="{key}"]').content_frame
        found.locator("html[data-drawn]").wait_for(state="attached")
        return found

    def stage(self, key: str) -> Any:
        """Return a figure of a static page, drawn."""
        found = self.page.locator(f'.stage[data-section="{key}"]')
        found.evaluate("(stage) => stage.scrollIntoView({ block: 'center' })")
        self.page.wait_for_function("() => document.documentElement.dataset.ready === 'true'")
        return found

    def close(self) -> None:
        """Close it: a scene costs time as long as it is there."""
        self.page.context.close()


Open = Callable[..., Page]
