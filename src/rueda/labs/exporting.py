"""Write a lab as one static HTML page that works from disk, without a network: figures with sliders, and questions.

The notebook is run from start to end, and each of its blocks is written: text as it is, figures for all values of their
sliders, questions with hashes of their answers, exercises with their skeletons. As in a report, the page's policy names
its scripts by their hashes, and it loads nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from runpy import run_path
from typing import Any

from rueda.errors import LabError
from rueda.files.atomic import check_writable, write_atomically
from rueda.labs.catalogue import LABS, Lab
from rueda.labs.explore import Shown
from rueda.labs.opening import need_marimo
from rueda.labs.showing import EMPTY, data_text, scripts, style
from rueda.report.head import page_head
from rueda.report.inlined import packed_plotly, packed_text
from rueda.terminal.points import PointsProgress


def export_lab(lab: Lab, file: Path | str, *, show: bool = False) -> Path:
    """Write the page of one lab.

    Args:
        lab: the lab.
        file: the page to write.
        show: show the progress.

    Returns:
        The page's path.

    Raises:
        MissingExtra: marimo is not installed.
        RunError: the page cannot be written.
    """
    need_marimo()
    file = Path(file)
    check_writable(file)
    with _one_thread():
        write_atomically(file, page(lab, run_notebook(lab), show=show).encode())
    return file


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread: the models are so small that several threads wait for each other most of the time."""
    import torch

    from rueda.world import open_world

    open_world()  # it chooses the number of threads, once: the first training of a lab would do so otherwise
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def export_all(folder: Path | str, *, show: bool = False) -> list[Path]:
    """Write the pages of all labs into a folder, as ``lab-1.html`` and so on."""
    return [export_lab(lab, Path(folder) / page_name(lab), show=show) for lab in LABS if lab.notebook.is_file()]


def page_name(lab: Lab) -> str:
    """Return the usual name of a lab's page.

    >>> page_name(LABS[0])
    'lab-1.html'
    """
    return f"lab-{lab.number}.html"


def run_notebook(lab: Lab) -> list[Any]:
    """Run a notebook from start to end, without a browser; return what its cells show, in order."""
    outputs, _ = run_path(str(lab.notebook))["app"].run()
    return [output for output in outputs if output is not None]


def page(lab: Lab, outputs: Iterable[Any], *, show: bool = False) -> str:
    """Return the HTML of a lab whose cells show these outputs."""
    outputs = list(outputs)
    body = "\n".join(_block(output) for output in outputs)
    frames = packed_text(data_text(_frames(lab, outputs, show=show)))
    packed, script = packed_plotly()[1], scripts("parts.js", "alone.js", "static.js")
    title = f"Rueda, lab {lab.number}: {lab.title}"
    return f"""{page_head(title, script=script, style=style())}<body class="lab">
<header><p class="brand">Rueda <span>lab {lab.number}, about {lab.minutes} minutes</span></p>
<p id="progress"></p></header>
<main>
{body}
</main>
<footer><p class="source">This page shows precomputed values. <code>rueda lab {lab.number}</code> opens the same lab
with everything computed live, and with exercises.</p></footer>
<p id="trouble" hidden></p><i id="light" class="light" hidden></i>
<script type="application/json" id="data">{EMPTY}</script>
<script type="text/plain" id="frames">{frames}</script>
<script type="text/plain" id="plotly">{packed}</script>
<script>{script}</script>
</body>
</html>
"""


def _frames(lab: Lab, outputs: Iterable[Any], *, show: bool) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    moving = [output for output in outputs if isinstance(output, Shown)]
    counts = [len(output.exploration.combinations()) for output in moving]
    title = f"lab {lab.number}"
    with PointsProgress(speak=show, description=title, total=sum(counts), noun="figures") as progress:
        for number, output in enumerate(moving):
            key = output.exploration.key
            if key in found:
                raise LabError("key", expected="a key that is used once", got=key, do="rename it")
            found[key] = output.frames()
            if progress.due:
                progress.show(sum(counts[: number + 1]))
    return found


def _block(output: Any) -> str:
    """Return the HTML of what a cell shows: a block of ours, or marimo's Markdown.

    Marimo's sliders and forms are left out: the block of the cell that reads them writes the whole in its place.
    """
    if hasattr(output, "static"):
        return str(output.static())
    text = str(getattr(output, "text", ""))
    if "<marimo-ui-element" in text or "<iframe" in text:
        return ""
    if not text or "<marimo-" in text:
        raise LabError("output of a cell", expected="Markdown or a block of rueda.labs", got=output, do="use mo.md")
    return f'<div class="said">{text}</div>'
