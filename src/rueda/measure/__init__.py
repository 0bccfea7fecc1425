"""Measure what a plan needs to know: step time, memory, communication, overlap and the gradient noise scale.

=================  ==============================================================================
``steps``          time and memory of a step at each local batch
``communication``  time of an all-reduce at each message size, among real workers
``together``       slowdown of workers that share a machine, and overlap of communication
``noise``          the gradient noise scale, from a short training
``work``           floating-point operations and bytes of a step, counted
``step_meter``     a profile from a user's own training loop
``worker_jobs``    the parts that run in worker processes: one worker alone, several together
``measure_task``   the whole measurement: :func:`measure`
=================  ==============================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rueda.lazy import lazily

if TYPE_CHECKING:
    from rueda.measure.communication import measure_communication
    from rueda.measure.measure_task import measure
    from rueda.measure.step_meter import StepMeter
    from rueda.measure.work import count_work

__all__ = ["StepMeter", "count_work", "measure", "measure_communication"]

__getattr__ = lazily(
    __name__,
    {
        "StepMeter": "step_meter", "count_work": "work", "measure": "measure_task",
        "measure_communication": "communication",
    },
)  # fmt: skip
