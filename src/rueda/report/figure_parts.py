"""What figures share: one list of colours, and logarithmic axes with ticks at 1, 2 and 5."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rueda.terminal.numbers import count

COLOURS = ("@ink", "@red", "@blue", "@orange", "@green", "@purple", "@sky")
"""the page's own, in the order in which the lines of a figure take them"""


def colour(index: int) -> str:
    """Give a line its colour; after the last comes the first again.

    >>> colour(1), colour(8)
    ('@red', '@red')
    """
    return COLOURS[index % len(COLOURS)]


def one_two_five(low: float, high: float) -> list[float]:
    """List the ticks of a logarithmic axis: 1, 2 and 5 times powers of ten; over more than three, the powers alone.

    >>> one_two_five(0.08, 3), one_two_five(1, 50_000)
    ([0.1, 0.2, 0.5, 1.0, 2.0], [1.0, 10.0, 100.0, 1000.0, 10000.0])
    """
    first, last = math.log10(low), math.log10(high)
    powers = range(math.floor(first), math.ceil(last) + 1)
    ticks = [float(f"{digit}e{power}") for power in powers for digit in ((1,) if last - first > 3 else (1, 2, 5))]
    return [tick for tick in ticks if low <= tick * (1 + 1e-9) and tick <= high * (1 + 1e-9)]


def log_axis(title: str, ticks: Sequence[float], **more: Any) -> dict[str, Any]:
    """Give a logarithmic axis with ticks at these values, written as people write them.

    >>> log_axis("workers", [1, 2, 1024])["ticktext"]
    ['1', '2', '1,024']
    """
    return {"title": title, "type": "log", "tickvals": list(ticks), "ticktext": [count(x) for x in ticks], **more}
