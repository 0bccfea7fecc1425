"""The labs of the course as static pages of the site: ``course/lab-1.html`` and so on.

They are written by the same exporter as ``rueda lab --export``, once for each state of the source code: the pages lie
in ``build/labs`` under a checksum of all of it, since computing their figures takes a while.
"""

from __future__ import annotations

import hashlib
import shutil
from importlib.util import find_spec
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util.logging import getLogger

_log = getLogger(__name__)
_SOURCE = Path(__file__).parents[2] / "src" / "rueda"


def setup(app: Sphinx) -> None:
    """Register the step with Sphinx; it comes before the check of the links."""
    app.connect("source-read", _leave_out_links)
    app.connect("build-finished", _write_pages, priority=400)


def _leave_out_links(app: Sphinx, page: str, source: list[str]) -> None:
    """Remove the links to labs that are not written yet."""
    if page == "course/index":
        from rueda.labs.catalogue import LABS
        from rueda.labs.exporting import page_name

        for lab in LABS:
            if not lab.notebook.is_file():
                source[0] = source[0].replace(f'<a href="{page_name(lab)}">The static page</a>.', "")


def _write_pages(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.name != "html":
        return
    if find_spec("marimo") is None:
        _log.warning("the labs are left out, since marimo is not installed: pip install 'rueda[labs]'")
        return
    from rueda.labs.catalogue import LABS
    from rueda.labs.exporting import export_lab, page_name

    kept = _SOURCE.parents[1] / "build" / "labs" / checksum(_SOURCE)
    for lab in LABS:
        page = kept / page_name(lab)
        if lab.notebook.is_file() and not page.is_file():
            export_lab(lab, page)
        if page.is_file():
            target = Path(app.outdir, "course", page.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(page, target)
    for other in kept.parent.iterdir():
        if other != kept:
            shutil.rmtree(other)


def checksum(folder: Path) -> str:
    """Return a checksum of the names and contents of all files of a folder.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.py").write_text("x = 1")
    >>> before = checksum(folder)
    >>> _ = (folder / "a.py").write_text("x = 2")
    >>> before == checksum(folder)
    False
    """
    found = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.suffix != ".pyc":
            found.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:16]
