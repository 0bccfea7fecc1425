"""What a plan must know: step time, memory, communication, overlap and gradient noise, measured.

=================  ==============================================================================
``steps``          time and memory of a step against the local batch
``communication``  all-reduce against bytes, among real workers
``together``       what workers of one machine cost each other; overlap
``noise``          the gradient noise scale, in a short training
``own_loop``       the same from a user's own loop
``parts``          these as jobs: one worker alone, several together
``whole_task``     all of it: :func:`measure`
=================  ==============================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rueda.lazy import lazily

if TYPE_CHECKING:
    from rueda.measure.communication import measure_communication
    from rueda.measure.own_loop import StepMeter
    from rueda.measure.whole_task import measure_task as measure

__all__ = ["StepMeter", "measure", "measure_communication"]

_find = lazily(__name__, {"StepMeter": "own_loop", "measure_communication": "communication"})


def __getattr__(name: str) -> Any:
    if name == "measure":
        from rueda.measure.whole_task import measure_task

        return measure_task
    return _find(name)
