"""The answers of lab 1, gradient descent."""

from __future__ import annotations

from rueda.labs.answering import Answer, Check


def _lowest_loss() -> float:
    from rueda.labs.lab_1.line import best_loss

    return best_loss()


def _best_for_16() -> float:
    from rueda.labs.lab_1.batch_table import all_batches, rounds

    return float(min(all_batches(), key=lambda one: rounds(one.row.updates, one.row.batch, 16)).row.batch)


def _stable_rate() -> float:
    from rueda.labs.lab_1.stable_rate import stable_rate

    return stable_rate()


def _days() -> float:
    from rueda.labs.lab_1.trends import MACHINES, NEEDED, days

    return days(NEEDED, MACHINES["8 GPUs of 2022"], machines=8, efficiency=0.9)


ANSWERS = {
    "1.lowest-loss": Answer(
        right=_lowest_loss, tolerance=4.0,
        why="The noise stands inside the slope: it moves y by 10 × noise, and no line can follow it. Its square, about "
        "100, is what remains.",
        hints=["Try w = 10 and b = 2, and then the values beside them.",
               "The lowest value of the title is just below 100, since the noise has a standard deviation of 10 in y."],
    ),
    "1.wander": Answer(
        right="data without noise",
        why="Without noise all points lie on one line: at the minimum every single point has the gradient zero, and "
        "nothing pushes the path away. With noise each point pulls to its own side.",
        hints=["Set the noise to 0, and look at the end of the path.",
               "At the minimum of all the points, is the gradient of each single point zero? What decides that?"],
    ),
    "1.fewest-updates": Answer(
        right="2 times fewer",
        why="From about 100 to about 60. The gradient of all the points is more exact, but the step is no longer: "
        "twelve times the work for half the updates. This is the theme of lab 3.",
        hints=["Compare the rows of batch 8 and batch 100 in the column of updates.",
               "Divide the updates of batch 8 by those of batch 100."],
    ),
    "1.best-for-16": Answer(
        right=_best_for_16, tolerance=0.5,
        why="The largest batch that the machine computes in one round: larger ones save few updates and need more "
        "rounds, smaller ones leave the machine idle.",
        hints=["Set the slider to 16 points at the same time: which bar is blue?",
               "Batches of up to 16 take one round for each update; among them the one with the fewest updates wins."],
    ),
    "1.stable-rate": Answer(
        right=_stable_rate, tolerance=0.0005,
        why="It is 2 divided by the largest eigenvalue of the Hessian. Over many draws of the points "
        "it is about 0.029.",
        hints=["Divide 2 by the largest eigenvalue, which stands below the figure.",
               "Set the slider to 0.98 and to 1.02: the limit lies between the two rates in the titles."],
    ),
    "1.steepest-point": Answer(
        right="those with a large x",
        why="The curvature of a single point is 2 (x² + 1): the gradient by w is multiplied by x, and so is its "
        "change. The error does not enter the second derivative.",
        hints=["Differentiate the squared error of one point twice. What is left of y?",
               "The second derivative of (w x + b − y)² by w is 2 x²."],
    ),
    "1.skip-connections": Answer(
        right="the loss around the minimum rises less steeply",
        why="With 20 layers the difference at the edge is a factor of a hundred or more, in this pair of trainings. "
        "A likely reason: the signal has a way around each layer, so changes of the layers do not multiply.",
        hints=["Compare the heights at the edge of the two surfaces, for 5 and for 20 layers.",
               "The colours of both surfaces share one scale: which of them is brighter at its edge?"],
    ),
    "1.days": Answer(
        right=_days, tolerance=0.1,
        why="1000 / (32 × 8 × 0.9) = 4.3 days, in place of 31 on one machine.",
        hints=["Divide the work by what all machines really compute in a day.",
               "Eight machines at 90 % compute 8 × 32 × 0.9 PF/s."],
    ),
}  # fmt: skip
"""the answers by key"""


def _gradient(w: float, b: float, x: list[float], y: list[float]) -> list[float]:
    import numpy as np

    from rueda.study.gradient_descent import gradient

    points = np.array([x])
    by_w, by_b = gradient(points, w * points + b - np.array([y]))
    return [float(by_w[0]), float(by_b[0])]


def _updates(num_points: int, batch: int) -> int:
    from rueda.labs.lab_1.paths import updates_per_epoch

    return updates_per_epoch(num_points, batch)


def _largest_rate(eigenvalues: list[float]) -> float | None:
    from rueda.records.curvature import largest_stable_rate

    return largest_stable_rate(max(eigenvalues))


def _efficiency(images_per_second: float, workers: int, alone: float) -> float:
    from rueda.plan.prediction import scaling_efficiency

    return scaling_efficiency(images_per_second, workers, alone)


CHECKS = {
    "1.gradient": Check(
        function="gradient",
        cases=[(0.0, 0.0, [1.0, 3.0], [2.0, -4.0]), (10.0, 2.0, [0.5, 4.0, 9.0], [7.5, 40.0, 99.0])],
        expected=_gradient,
        why="`descend` in the library follows this gradient.",
        hints=["A mean is a sum divided by the number of points.",
               "By w: `2 * sum(x * error) / n`, with the x and the error of each point; by b the same without x."],
        solution="def gradient(w, b, x, y):\n    errors = [w * one + b - other for one, other in zip(x, y)]\n"
        "    by_w = 2 * sum(one * error for one, error in zip(x, errors)) / len(x)\n"
        "    by_b = 2 * sum(errors) / len(x)\n    return [by_w, by_b]\n",
    ),
    "1.updates-per-epoch": Check(
        function="updates_per_epoch", cases=[(100, 1), (100, 8), (100, 100), (50_000, 512)], expected=_updates,
        why="The last batch may be smaller, and is an update too.",
        hints=["How many batches does a pass have, the smaller last one included?",
               "Divide and round up: `-(-num_points // batch)`."],
        solution="def updates_per_epoch(num_points, batch):\n    return -(-num_points // batch)\n",
    ),
    "1.rate-from-curvature": Check(
        function="largest_rate", cases=[([68.2, 0.489],), ([1.0, 50.0, 3.0],)], expected=_largest_rate,
        why="The steepest direction decides, however gentle the others are.",
        hints=["Which eigenvalue limits the rate: the largest, the smallest or their mean?",
               "It is 2 divided by the largest one; the list need not be sorted."],
        solution="def largest_rate(eigenvalues):\n    return 2 / max(eigenvalues)\n",
    ),
    "1.efficiency": Check(
        function="efficiency", cases=[(489_929.0, 8, 71_149.0), (125_206.0, 2, 71_149.0)], expected=_efficiency,
        why="Eight V100 GPUs reach 86 %: a seventh of the machine is lost to the exchange.",
        hints=["What does each worker do, and what would it do alone?",
               "Divide by the number of workers, and then by the speed of one worker alone."],
        solution="def efficiency(images_per_second, workers, alone):\n"
        "    return images_per_second / workers / alone\n",
    ),
}  # fmt: skip
"""how the exercises are judged, by key"""
