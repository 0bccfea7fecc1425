"""The labs of the course, by number. Reading the list loads neither torch nor marimo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rueda.errors import LabError


@dataclass(frozen=True, kw_only=True)
class Lab:
    """One lab: a notebook with its questions and exercises."""

    number: int
    name: str
    """an identifier of lower-case letters and underscores, part of the notebook's file name"""
    title: str
    minutes: int
    """how long a learner takes, about"""
    about: str
    """one sentence for the list"""

    @property
    def notebook(self) -> Path:
        """The file of the notebook."""
        return Path(__file__).with_name("notebooks") / f"lab_{self.number}_{self.name}.py"


LABS = (
    Lab(
        number=1, name="gradient_descent", title="Gradient descent", minutes=60,
        about="A line fitted by small steps: what the batch size and the learning rate do, and why more GPUs.",
    ),
    Lab(
        number=2, name="data_parallelism", title="Data parallelism", minutes=90,
        about="What workers exchange, the fifteen stages of a training iteration, and a serial script made parallel.",
    ),
    Lab(
        number=3, name="scaling_the_batch", title="Scaling the batch", minutes=90,
        about="Faster with a larger batch, up to a point: noise scale, generalisation, and each technique on and off.",
    ),
    Lab(
        number=4, name="planning", title="Planning", minutes=60,
        about="How much data, compute, time and money a target needs, predicted and then measured.",
    ),
)  # fmt: skip


def lab(number: int) -> Lab:
    """Return the lab of a number.

    >>> lab(1).title, lab(1).notebook.name
    ('Gradient descent', 'lab_1_gradient_descent.py')

    Raises:
        LabError: there is no such lab.
    """
    for one in LABS:
        if one.number == number:
            return one
    raise LabError("lab", expected=f"a number from 1 to {len(LABS)}", got=number, do="see `rueda lab`")
