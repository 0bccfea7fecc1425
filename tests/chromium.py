"""The browser of the tests, and how it is started: without a GPU, with scenes drawn in software."""

from __future__ import annotations

import os
import shutil

CHROMIUM = shutil.which("chromium")
FLAGS = [
    *("--headless", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--no-first-run", "--enable-unsafe-swiftshader", "--disable-dev-shm-usage"),
    *(["--no-sandbox"] if os.geteuid() == 0 else []),
]
