"""Studies that compare many trainings: techniques, throughput, updates to a target, gradient
descent, parallel forms.

Importing this package does not load torch; using some of its names does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rueda.lazy import lazily

if TYPE_CHECKING:
    from rueda.study.gradient_descent import study_gradient_descent
    from rueda.study.parallelism import study_parallelism
    from rueda.study.steps_to_target import study_steps_to_target
    from rueda.study.techniques import study_techniques
    from rueda.study.throughput import study_throughput

__all__ = [
    "study_gradient_descent",
    "study_parallelism",
    "study_steps_to_target",
    "study_techniques",
    "study_throughput",
]

__getattr__ = lazily(
    __name__,
    {
        "study_gradient_descent": "gradient_descent",
        "study_parallelism": "parallelism",
        "study_steps_to_target": "steps_to_target",
        "study_techniques": "techniques",
        "study_throughput": "throughput",
    },
)
