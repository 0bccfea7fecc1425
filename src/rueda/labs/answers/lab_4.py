"""The answers of lab 4, planning."""

from __future__ import annotations

from rueda.labs.answering import Answer, Check

PLANNED = ("dgx-h100", 2_000)
"""the cluster and the noise scale that the questions about the planner are about"""


def _times_more_data() -> float:
    from rueda.plan.power_law import examples_for

    return examples_for(3.0, -0.5, 0.0, 0.05) / examples_for(3.0, -0.5, 0.0, 0.1)


def _examples() -> float:
    from rueda.labs.lab_4.learning_curves import forecast

    need = forecast("Fashion-MNIST", 0.1).need
    assert need is not None
    return need.examples.value


def _ring() -> float:
    from rueda.plan.cluster import Link
    from rueda.plan.collectives import ring

    return 1e3 * ring(100e6, 8, Link(latency=0.0, bandwidth=1e9))


def _goodput() -> float:
    from rueda.plan.noise import statistical_efficiency

    return 8_000 * statistical_efficiency(1_032, 32, 968)


def _workers() -> float:
    from rueda.labs.lab_4.planner import plan

    return float(plan(*PLANNED).chosen.workers)


def _planned_rate() -> float:
    from rueda.labs.lab_4.planner import plan
    from rueda.optim.scaling import rate_factor
    from rueda.records.recipe.recipe import Recipe

    recipe = Recipe.from_toml(plan(*PLANNED).recipe)
    return recipe.rate * rate_factor(recipe.scaling, recipe.scale)


def _largest_error() -> float:
    from rueda.labs.lab_4.measured import largest_error

    return 100 * largest_error("wall")


ANSWERS = {
    "4.days": Answer(
        right=1_000 / 32,
        tolerance=0.3,
        why="1,000 / 32 is about 31 days, if nothing is lost; losses are what the rest of this lab is about.",
        hints=["How much work does the machine do in one day?", "32 of the 1,000 petaflop/s-days are done each day."],
    ),
    "4.halve": Answer(
        right=_times_more_data,
        tolerance=0.05,
        why="m^-0.5 is halved by four times the data. At an exponent of -0.1 it would take 1,024 times as much.",
        hints=["Solve (k m)^-0.5 = m^-0.5 / 2 for k.", "k^-0.5 = 1/2, so k = 2²."],
    ),
    "4.zone": Answer(
        right="the irreducible zone",
        why="There the floor is more than half of the error. Better labels or a larger model help; more of "
        "the same data do not.",
        hints=[
            "Raise gamma, and look at the right end of the curve.",
            "In which zone is the curve flat although the data grow?",
        ],
    ),
    "4.examples": Answer(
        right=_examples,
        tolerance=1_000,
        why="About 28,500 images, about half of those that there are; the interval is far from symmetric.",
        hints=[
            "Choose Fashion-MNIST and a target error of 0.1, and read the first sentence.",
            "It is nearly half of 60,000.",
        ],
    ),
    "4.refused": Answer(
        right="it is near or below the floor of the fitted law",
        why="The floor is known only to an interval, and the target lies in it: no number of examples would be honest.",
        hints=[
            "Choose glyphs and a target of 0.06, and read the refusal.",
            "Compare the target with gamma and its interval.",
        ],
    ),
    "4.interval": Answer(
        right="it becomes narrower",
        why="More sizes, and sizes nearer to the target, leave less to extrapolate.",
        hints=["Move the slider from 4 to 6 sizes.", "Compare the column with the interval."],
    ),
    "4.ring": Answer(
        right=_ring,
        tolerance=1,
        why="2 (n - 1)/n x 100 MB at 1 GB/s: 175 ms. Nearly twice the gradient crosses each link, for any large n.",
        hints=["Each worker sends 2 (n - 1)/n times the gradient.", "2 x 7/8 x 0.1 GB at 1 GB/s, in milliseconds."],
    ),
    "4.limit": Answer(
        right="the all-reduce over the network",
        why="It takes as long as the computation, and only a part can hide behind the backward pass.",
        hints=["Choose ethernet-25 and look at the colours of the bars.", "Which part is missing on dgx-h100?"],
    ),
    "4.scaling": Answer(
        right=100 * 489_929 / 8 / 71_149,
        tolerance=0.5,
        why="61,241 images/s per GPU against 71,149 alone: 86 %.",
        hints=["Throughput per GPU, divided by that of one GPU alone.", "489,929 / 8 / 71,149."],
    ),
    "4.goodput": Answer(
        right=_goodput,
        tolerance=20,
        why="Each image is worth half of one in a batch of 32, so 8,000 images/s are as good as 4,000 there.",
        hints=["Goodput is throughput times statistical efficiency.", "8,000 x (968 + 32) / (968 + 1,032)."],
    ),
    "4.workers": Answer(
        right=_workers,
        tolerance=0.4,
        why="The fastest plan that costs at most twice as much as the cheapest one.",
        hints=["Set the sliders and read the first line.", "The red star in the figures marks it."],
    ),
    "4.why-not-more": Answer(
        right="the training would cost more than twice the least",
        why="More workers would still be faster, but each adds less than half of the progress that one makes alone.",
        hints=[
            "The plan weighs time against money. Read how it chooses.",
            "The row below the recommended one is faster. What else is it?",
        ],
    ),
    "4.rate": Answer(
        right=_planned_rate,
        tolerance=0.005,
        why="0.01 x 32, since the global batch is 32 times that of one worker.",
        hints=["Read the line about the learning rate.", "Rate of one worker x (global batch / batch of one worker)."],
    ),
    "4.off": Answer(
        right=_largest_error,
        tolerance=0.3,
        why="Within a tenth, on a machine with other work; that is enough to choose the number of workers.",
        hints=["Find the ratio that is farthest from 1.", "1.08 or 0.92: in percent, with one digit."],
    ),
}
"""the answers by key"""


def _examples_for(alpha: float, beta: float, gamma: float, target: float) -> float:
    from rueda.plan.power_law import examples_for

    return examples_for(alpha, beta, gamma, target)


def _goodput_of(images_per_second: float, batch: int, base_batch: int, noise_scale: float) -> float:
    from rueda.plan.noise import statistical_efficiency

    return images_per_second * statistical_efficiency(batch, base_batch, noise_scale)


CHECKS = {
    "4.data-needed": Check(
        function="examples",
        cases=[(2.0, -0.4, 0.05, 0.1), (10.7, -0.663, 0.0629, 0.1), (3.0, -0.3, 0.0, 0.02)],
        expected=_examples_for,
        why="That is what `rueda forecast` computes, with an interval around it.",
        hints=[
            "Solve target = alpha m^beta + gamma for m.",
            "`((target - gamma) / alpha) ** (1 / beta)`: beta is negative, so a smaller target needs more.",
        ],
        solution=("def examples(alpha, beta, gamma, target):\n    return ((target - gamma) / alpha) ** (1 / beta)\n"),
    ),
    "4.progress": Check(
        function="goodput",
        cases=[(8_000.0, 1_032, 32, 968.0), (575.0, 32, 32, 500.0), (1e5, 65_536, 256, 15_000.0)],
        expected=_goodput_of,
        why="The planner computes this for every number of workers and every batch.",
        hints=[
            "Multiply the throughput by what an image is worth.",
            "`images_per_second * (noise_scale + base_batch) / (noise_scale + batch)`.",
        ],
        solution=(
            "def goodput(images_per_second, batch, base_batch, noise_scale):\n"
            "    return images_per_second * (noise_scale + base_batch) / (noise_scale + batch)\n"
        ),
    ),
}
"""how the exercises are judged, by key"""
