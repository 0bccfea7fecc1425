"""From the files of runs and studies to one HTML page that needs no server, no network and no torch.

>>> import json, tempfile
>>> from pathlib import Path
>>> folder = Path(tempfile.mkdtemp())
>>> points = [{"batch": 8, "images_per_second": 322.0}, {"batch": 512, "images_per_second": 680.0}]
>>> study = {"format": 1, "kind": "throughput", "task": "glyphs-cnn", "points": points, "saturates_at": 512}
>>> _ = (folder / "throughput.json").write_text(json.dumps(study))
>>> page = write_report([folder], folder / "report.html")
>>> page.name, "hardly more images a second beyond a local batch of 512" in page.read_text()
('report.html', True)
"""

from __future__ import annotations

from rueda.report.page import write_report
from rueda.report.png import write_figures

__all__ = ["write_figures", "write_report"]
