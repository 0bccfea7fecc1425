"""The number of a job among those that run at the same time on this machine, each in one process, as in a study.

Such a job is a world of one worker, whose local rank is 0: without this number each of them would take GPU 0.
"""

from __future__ import annotations

from collections.abc import Mapping

JOB_SLOT = "RUEDA_JOB_SLOT"
"""variable that the process which starts the jobs sets"""


def job_slot(environ: Mapping[str, str]) -> int:
    """Return the number of this job, from 0; 0 if nothing else was set."""
    text = environ.get(JOB_SLOT, "")
    return int(text) if text.isdigit() else 0
