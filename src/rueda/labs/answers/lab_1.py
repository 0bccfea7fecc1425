"""The answers of lab 1, gradient descent."""

from __future__ import annotations

from rueda.labs.answering import Answer, Check


def _num_points() -> float:
    from rueda.study.gradient_descent import NUM_POINTS

    return float(NUM_POINTS)


ANSWERS = {
    "1.updates-an-epoch": Answer(
        right=_num_points, tolerance=0.25,
        why="With a batch of one, each of the 100 points makes an update.",
        hints=["Count the batches in one pass over the data.", "100 points, one point a batch: how many batches?"],
    ),
    "1.same-direction": Answer(
        right="mini-batch",
        why="It is noisy, and the noise is averaged.",
        hints=["Look at the three paths.", "One of them is neither straight nor wild."],
    ),
}  # fmt: skip
"""the answers by key"""


def _updates(points: int, batch: int) -> int:
    return -(-points // batch)


CHECKS = {
    "1.updates": Check(
        function="updates", cases=[(100, 1), (100, 8), (100, 100)], expected=_updates,
        why="The last batch may be smaller, and is an update too.",
        hints=["How many batches does a pass have, the smaller last one included?", "`-(-points // batch)` rounds up."],
        solution="def updates(points, batch):\n    return -(-points // batch)\n",
    ),
}  # fmt: skip
"""how the exercises are judged, by key"""
