"""Runs a function of this package in other processes of this machine, and gives back its answer.

::

    answer = jobs.run(Job(function="rueda.train.job:train", request=TrainRequest(...), answer=TrainAnswer), workers=4)

    caller ── job.json ──► python -m rueda.jobs.child FOLDER ── answer.json, or error-RANK.json ──► caller

The caller names the function and never imports it, so a command that only starts others loads no torch. Requests and
answers are frozen dataclasses; they travel as JSON and are read back strictly
(:func:`rueda.records.json_record.read_record`).

==============  ======================================================================================
``run``         one job, in one process or on N workers of the launcher (:mod:`rueda.world.launch`)
``run_many``    several jobs at a time, each in one process
``Job``         which function, its request, the type of its answer
``Stopped``     a signal stopped the work: the only exception for it, made from exit statuses in one place
==============  ======================================================================================

What a job may end with: its answer; a :class:`~rueda.errors.RuedaError`, raised here as it was raised there;
:class:`Stopped`, after SIGINT or SIGTERM; or :class:`~rueda.errors.JobError`, which names the signal that killed the
process or the last line that it wrote.
"""

from __future__ import annotations

from rueda.jobs.messages import Job
from rueda.jobs.one import run
from rueda.jobs.processes import run_many
from rueda.jobs.stopping import Stopped

__all__ = ["Job", "Stopped", "run", "run_many"]
