"""Run a function of this package in other processes on this machine, and return its answer.

::

    answer = jobs.run(Job(function="rueda.train.job:train", request=TrainRequest(...), answer=TrainAnswer), workers=4)

    caller ── job.json ──► python -m rueda.jobs.child FOLDER ── answer.json, or error-RANK.json ──► caller

The caller names the function without importing it, so a command that only starts processes does not import torch.
Requests and answers are frozen dataclasses; they are sent as JSON files and type-checked when read
(:func:`rueda.records.json_record.read_record`).

==============  ============================================================================================
``run``         one job, in one process or on N workers of the launcher (:mod:`rueda.world.launch`)
``run_many``    several jobs at a time, each in one process
``Job``         which function, its request, the type of its answer
``Stopped``     the exception raised after a signal that stops jobs, such as SIGINT (Ctrl-C) or SIGTERM
==============  ============================================================================================

``run`` returns the answer of the job, or raises one of three exceptions: the :class:`~rueda.errors.RuedaError` that the
function raised; :class:`Stopped` after SIGINT or SIGTERM; or :class:`~rueda.errors.JobError`, which names the signal
that killed the process or the last line that it wrote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rueda.lazy import lazily

if TYPE_CHECKING:
    from rueda.jobs.messages import Job
    from rueda.jobs.processes import run_many
    from rueda.jobs.run_job import run
    from rueda.jobs.stopping import Stopped

__all__ = ["Job", "Stopped", "run", "run_many"]

# A command handles signals (rueda.jobs.stopping) before it imports anything else.
__getattr__ = lazily(__name__, {"Job": "messages", "Stopped": "stopping", "run": "run_job", "run_many": "processes"})
