"""A serial script, and the same script with some of the steps that make it parallel.

Each of the three scripts is kept as one text in which a line may say in which versions it occurs::

    model = DistributedDataParallel(model)  #: wrap & synchronise
    loader = DataLoader(train, batch_size=64, shuffle=True)  #: !partition

A line without ``#:`` occurs in all of them, and a blank line may have a condition as well; ``&``, ``|`` and ``!`` are
and, or and not. So every stage on the way from the serial script to the parallel one, and the parallel one without any
one of its steps, come from the same text.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass
from importlib.resources import files

from rueda.errors import RuedaError


@dataclass(frozen=True)
class Step:
    """One of the steps that make a serial script parallel."""

    name: str
    title: str
    why: str
    without: str
    """what happens if this step alone is left out"""


STEPS = (
    Step(
        "init",
        "initialise",
        "Each process learns its rank and how many others there are, and connects to them.",
        "The other steps ask for the rank, and nobody knows it: the script stops with an error.",
    ),
    Step(
        "pin",
        "pin a device",
        "Each process takes the GPU whose number is its rank on this machine.",
        "On a machine with GPUs all workers compute on the first one. Without a GPU there is nothing to see.",
    ),
    Step(
        "wrap",
        "wrap",
        "From now on the gradients are averaged over all workers between the backward pass and the update.",
        "Nobody exchanges gradients: two separate trainings on half of the data each, and one of them is thrown away.",
    ),
    Step(
        "synchronise",
        "synchronise the state",
        "All workers begin with the parameters and the optimizer state of rank 0.",
        "The workers add the same averaged gradients to different weights: they never become one model.",
    ),
    Step(
        "partition",
        "partition the data",
        "Each worker reads its own share, and all have equally many batches. The batch is divided as well, so that all "
        "workers together take the serial script's batch.",
        "Every worker reads all of the data: twice the work in an epoch, for nearly the same result.",
    ),
    Step(
        "writer",
        "one writer",
        "Rank 0 alone prints and saves.",
        "All workers write the same file at the same time, and each line is printed as often as there are workers.",
    ),
)
ORDER = tuple(step.name for step in STEPS)
STYLES = {"ddp": "PyTorch DDP", "horovod": "Horovod, PyTorch", "keras": "Horovod, Keras"}
VARIANTS = ("slices", "uneven", "aloud")
"""every n-th example instead of a sampler; shares that are not equally large; every rank prints, to compare them"""


def step(name: str) -> Step:
    """Return a step by its name."""
    return STEPS[ORDER.index(name)]


def script(style: str, steps: Collection[str]) -> str:
    """Return the text of a script with some of the steps.

    Args:
        style: ``ddp``, ``horovod`` or ``keras``.
        steps: names of steps, and of variants.

    >>> "DistributedDataParallel" in script("ddp", ["init"]), "DistributedDataParallel" in script("ddp", ["wrap"])
    (False, True)
    """
    unknown = set(steps) - {*ORDER, *VARIANTS}
    if style not in STYLES or unknown:
        expected = f"one of {', '.join(STYLES)} with steps of {', '.join((*ORDER, *VARIANTS))}"
        raise RuedaError("the script", expected=expected, got=f"{style} with {sorted(steps)}", do="choose among them")
    text = (files("rueda.labs") / "scripts" / f"{style}.txt").read_text(encoding="utf-8")
    lines = []
    for line in text.splitlines():
        code, _, condition = line.partition("  #: ")
        if not condition or _holds(condition, steps):
            lines.append(code)
    return "\n".join(lines) + "\n"


def up_to(style: str, number: int) -> str:
    """Return the script after so many steps: 0 is the serial script, 6 the parallel one."""
    return script(style, ORDER[:number])


def all_but(name: str) -> tuple[str, ...]:
    """Return all steps but one; every rank prints, so that the ranks can be compared."""
    return (*(each for each in ORDER if each != name), "aloud")


def changes(before: str, after: str) -> list[tuple[str, str]]:
    """Return the lines of both texts, each with a mark: `` `` in both, ``-`` only before, ``+`` only after.

    >>> changes("a\\nb", "a\\nc")
    [(' ', 'a'), ('-', 'b'), ('+', 'c')]
    """
    found = difflib.ndiff(before.splitlines(), after.splitlines())
    return [(line[0], line[2:]) for line in found if line[0] != "?"]


def _holds(condition: str, steps: Collection[str]) -> bool:
    """Return whether a condition holds, such as ``wrap & !synchronise | init``; ``&`` binds more closely.

    >>> _holds("wrap & !slices | init", ["wrap"]), _holds("wrap & !slices | init", ["wrap", "slices"])
    (True, False)
    """
    return any(
        all((word[1:] not in steps) if word.startswith("!") else (word in steps) for word in each.split(" & "))
        for each in condition.split(" | ")
    )
