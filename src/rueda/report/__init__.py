"""Make one HTML page from the files of runs and studies, without a server, a network or torch.

>>> import tempfile
>>> from pathlib import Path
>>> from rueda.records.throughput import ThroughputPoint, Throughput
>>> folder = Path(tempfile.mkdtemp())
>>> speeds = {8: 322.0, 512: 680.0, 700: 683.0}
>>> points = tuple(ThroughputPoint(batch=batch, images_per_second=speed, spread=0.0,
...     milliseconds_per_update=1e3 * batch / speed) for batch, speed in speeds.items())
>>> Throughput(task="glyphs-cnn", points=points).save(folder / "throughput.json")
>>> page = write_report([folder], folder / "report.html")
>>> page.name, "Throughput saturates at a local batch of 512" in page.read_text()
('report.html', True)
"""

from __future__ import annotations

from rueda.report.page import write_report
from rueda.report.png import write_figures

__all__ = ["write_figures", "write_report"]
