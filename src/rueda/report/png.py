"""Export the figures as PNG files, for papers and slides: a headless browser opens the page and draws them."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from rueda.errors import RunError
from rueda.files.atomic import write_atomically

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge", "chrome")
SECONDS = 120
_FLAGS = (
    *("--headless", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--no-first-run", "--enable-unsafe-swiftshader", "--hide-scrollbars", "--virtual-time-budget=60000"),
    "--disable-dev-shm-usage",  # a container's /dev/shm may have 64 MB; a page of figures needs more
)
_IMAGE = re.compile(r'<img data-file="([a-z0-9-]+)" src="data:image/png;base64,([A-Za-z0-9+/=]+)"')


def find_browser() -> str:
    """Return the path of a browser: the one that ``RUEDA_BROWSER`` names, or the first that is installed.

    Raises:
        RunError: there is none.
    """
    names = [os.environ["RUEDA_BROWSER"]] if os.environ.get("RUEDA_BROWSER") else BROWSERS
    for name in names:
        if found := shutil.which(name):
            return found
    raise RunError(
        f"--png: expected a browser, got none of {', '.join(names)}; install Chromium "
        "(Debian: apt-get install chromium) or set RUEDA_BROWSER"
    )


def write_figures(page: Path | str, folder: Path | str) -> list[Path]:
    """Write each figure of a page as a PNG file with a light background and the whole legend.

    Files are 1,800 pixels wide, those of a single three-dimensional scene 1,300.

    Args:
        page: a page by :func:`rueda.report.write_report`.
        folder: the folder of the files; ``s0-techniques.png`` is a figure of the first section.

    Raises:
        RunError: there is no browser, or it drew nothing.
    """
    page, folder = Path(page), Path(folder)
    browser = find_browser()
    with tempfile.TemporaryDirectory(prefix="rueda-") as scratch:
        flags = [*_FLAGS, f"--user-data-dir={scratch}"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            flags.append("--no-sandbox")  # the browser's sandbox refuses root
        command = [browser, *flags, "--dump-dom", page.resolve().as_uri() + "#png"]
        try:
            answer = subprocess.run(command, capture_output=True, timeout=SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RunError(f"--png: expected {browser} to draw the figures, got: {error}; try again") from None
    found = _IMAGE.findall(answer.stdout.decode(errors="replace"))
    if not found:
        raise RunError(
            f"--png: expected figures from {browser}, got none (status {answer.returncode}); open the page in a "
            "browser to see whether it has figures"
        )
    written = []
    for name, image in found:
        file = folder / f"{name}.png"
        write_atomically(file, base64.b64decode(image))
        written.append(file)
    return written
