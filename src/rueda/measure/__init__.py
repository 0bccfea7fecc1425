"""What a plan must know: step time, memory, communication, overlap and gradient noise, measured.

=================  ==============================================================================
``steps``          time and memory of a step against the local batch
``communication``  all-reduce against bytes, among real workers
``together``       what workers of one machine cost each other; overlap
``noise``          the gradient noise scale, in a short training
``own_loop``       the same from a user's own loop
``whole``          all of it: :func:`measure`
=================  ==============================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rueda.lazy import lazily

if TYPE_CHECKING:
    from rueda.measure.communication import measure_communication
    from rueda.measure.own_loop import StepMeter
    from rueda.measure.whole import measure

__all__ = ["StepMeter", "measure", "measure_communication"]

__getattr__ = lazily(__name__, {"StepMeter": "own_loop", "measure": "whole", "measure_communication": "communication"})
