"""The answers of lab 3, scaling the batch."""

from __future__ import annotations

from rueda.labs.answering import Answer, Check


def _updates() -> float:
    from rueda.optim.batch_growth import num_updates

    return float(num_updates(8 * 512, 12, num_examples=50_000))


def _saturation() -> float:
    from rueda.labs.lab_3.throughput import published

    return float(published().saturates_at or 0)


def _regime() -> str:
    from rueda.labs.lab_3.regimes import curve

    return curve(512).regime(8_192)


def _noise_scale() -> float:
    from rueda.labs.lab_3.noise import EXAMPLE, noise_scale

    return noise_scale([EXAMPLE])


def _worth() -> float:
    from rueda.plan.noise import statistical_efficiency

    return 100 * statistical_efficiency(1_032, 32, 968)


def _rate() -> float:
    from rueda.labs.lab_3.rates import scaled_rate

    return scaled_rate("linear", 0.1, 256, 8_192)


def _sigma() -> float:
    from rueda.optim.noise import sigma_for

    return sigma_for(128, 16)


def _growing_updates() -> float:
    from rueda.labs.lab_3.small_task import recipe
    from rueda.optim.batch_growth import num_updates
    from rueda.train.regime import batch_at

    growing = recipe("batch-growth")

    def batch(epoch: float) -> int:
        split = batch_at(growing, int(epoch), 2_000)
        return growing.workers * split.local_batch * split.accumulation

    return float(num_updates(batch, growing.epochs, num_examples=2_000))


def _best_single_row() -> str:
    from rueda.labs.lab_3.technique_tables import study

    found = study("CIFAR-10, 8 workers")
    rows = [row for name in SINGLE if (row := found.row(name)) is not None]
    return max(rows, key=lambda row: row.value or 0.0).name


SINGLE = ("batch-norm", "linear-warmup", "lamb", "gradient-noise")
"""the choices of one question: rows with one technique"""

ANSWERS = {
    "3.updates": Answer(
        right=_updates,
        tolerance=0.25,
        why="50,000 images make 12 whole batches of 4,096 an epoch, 144 in 12 epochs. One worker makes 1,164.",
        hints=[
            "The global batch is 8 x 512. An incomplete last batch is left out.",
            "50,000 // 4,096 batches an epoch, times 12 epochs.",
        ],
    ),
    "3.saturation": Answer(
        right=_saturation,
        tolerance=1,
        why="652 images/s at 128 are 95 % of the 683 at 700: more than five times the batch wins the last twentieth.",
        hints=[
            "Take 95 % of the highest throughput of the GPU, and find the smallest batch that reaches it.",
            "0.95 x 683 is about 649 images/s. Hover over the points: which is the first above that?",
        ],
    ),
    "3.regime": Answer(
        right=_regime,
        why="8,192 is 16 times the critical batch. Twice the batch saves only 3 % of the updates there.",
        hints=[
            "Set both sliders and read the table below the figure.",
            "From 9 times the critical batch on, twice the batch saves a tenth of the updates or less.",
        ],
    ),
    "3.tuning": Answer(
        right="it rises",
        why="A larger batch averages more noise away and bears a longer step. With one rate for all batch sizes, the "
        "curve of steps to target would show the rate, and not the batch.",
        hints=[
            "Move the slider from 8 to 128, and watch where the lowest point is.",
            "Read the word *fewest* in the table.",
        ],
    ),
    "3.noise-scale": Answer(
        right=_noise_scale,
        tolerance=0.5,
        why="The gradients differ by S/8 = 4, so S = 32, and the true gradient has |G|² = 3 - 4/2 = 1: 32 examples.",
        hints=[
            "With n = 2 workers of b = 8: S = b (Σ|gᵢ|² - n|g|²) / (n - 1), |G|² = |g|² - S / (n b).",
            "S = 8 (10 - 2 x 3) / 1 = 32. What is |G|², and what is S / |G|²?",
        ],
    ),
    "3.worth": Answer(
        right=_worth,
        tolerance=0.5,
        why="(968 + 32) / (968 + 1,032) = 50 %: about twice as many examples for the same progress.",
        hints=["The worth is (φ + B₀) / (φ + B), with the noise scale φ.", "(968 + 32) / (968 + 1,032), in percent."],
    ),
    "3.gap": Answer(
        right="updates",
        why="They see the same images as often, but make an eighth of the updates, and each is no longer than before.",
        hints=[
            "What stands in the table with an eighth of one worker's value?",
            "The epochs are the same for both rows.",
        ],
    ),
    "3.sharp": Answer(
        right="64 naive workers, the least accurate",
        why="They have hardly learnt anything: a high, shallow place is flat too. Sharpness alone does not say who "
        "generalises; compare it only between networks with an equally low training loss.",
        hints=[
            "Choose CIFAR-10 and look for the dot on the far left.",
            "How accurate is the network with the smallest eigenvalue?",
        ],
    ),
    "3.rate": Answer(
        right=_rate,
        tolerance=0.01,
        why="The batch is 32 times as large, and so is the rate: 3.2, after a warm-up of five epochs.",
        hints=["By which factor does the batch grow?", "8,192 / 256 = 32, and the linear rule multiplies 0.1 by that."],
    ),
    "3.ghost": Answer(
        right="each ghost batch by its own mean and variance",
        why="So the noise of the statistics stays that of a small batch, however large the global batch is.",
        hints=[
            "What would keep the noise of a small batch in a large one?",
            "A ghost batch is a small part of a worker's batch.",
        ],
    ),
    "3.sigma": Answer(
        right=_sigma,
        tolerance=0.01,
        why="σ² = 128/16 - 1 = 7: the update then has the covariance of a batch of 16.",
        hints=["(1 + σ²) / 128 has to equal 1 / 16.", "σ² = 128 / 16 - 1; the square root of that."],
    ),
    "3.growth": Answer(
        right=_growing_updates,
        tolerance=0.25,
        why="2,000 // 16 + 2,000 // 32 + 2,000 // 64 + 2,000 // 128: most updates are made early, with a small batch.",
        hints=[
            "The global batch is 16 in the first epoch, and doubles at each of the next three.",
            "Add the whole batches of 16, 32, 64 and 128 in 2,000 images.",
        ],
    ),
    "3.layer": Answer(
        right="the one with the smaller gradient",
        why="The local rate is η |w| / |g|: every layer moves by the same fraction η of its weights' norm.",
        hints=[
            "Look at the formula: what does the local rate divide by?",
            "Both layers are to move by the same fraction of their weights.",
        ],
    ),
    "3.table": Answer(
        right=_best_single_row,
        why="It ends level with one worker, with 144 updates. None of the other three comes within 15 points.",
        hints=[
            "Choose CIFAR-10 with 8 workers, and find the four rows.",
            "Only one of the four is near the dotted line.",
        ],
    ),
    "3.confounded": Answer(
        right="a step of LAMB takes longer than one of Adam",
        why="That is a price, not a confounder. The other three each change the accuracy without LAMB's help.",
        hints=[
            "Three of these change the accuracy itself.",
            "A confounder moves the number that is compared. Which of these moves only the time?",
        ],
    ),
}
"""the answers by key"""


def _noise(sum_of_squares: float, mean_square: float, workers: int, batch: int) -> float:
    from rueda.optim.noise_scale import Estimator

    estimator = Estimator()
    estimator.observe(sum_of_squares, mean_square, num_parts=workers, examples_per_part=batch)
    return estimator.estimate(step=1).value


def _warmed_up(step: int, base_rate: float, workers: int, warmup_steps: int) -> float:
    from rueda.optim.rates import build_schedule
    from rueda.records.recipe.recipe import Recipe

    recipe = Recipe(workers=workers, rate=base_rate, scaling="linear", warmup_epochs=1.0, epochs=10)
    return build_schedule(recipe, steps_per_epoch=warmup_steps)(step)


def _local_rate(weights: list[float], gradient: list[float], trust: float) -> float:
    import torch

    from rueda.optim import LARS

    layer = torch.nn.Parameter(torch.tensor([weights], dtype=torch.float64))
    layer.grad = torch.tensor([gradient], dtype=torch.float64)
    before = layer.detach().clone()
    LARS([layer], lr=1.0, momentum=0.0, trust=trust).step()
    return float((before - layer.detach()).norm() / layer.grad.norm())


CHECKS = {
    "3.estimate": Check(
        function="noise_scale",
        cases=[(10.0, 3.0, 2, 8), (40.0, 2.0, 8, 16), (9.0, 2.0, 4, 32)],
        expected=_noise,
        why="These two norms are all that a training needs to know how large its batch may become.",
        hints=[
            "First S = b (Σ|gᵢ|² - n|g|²) / (n - 1), then |G|² = |g|² - S / (n b).",
            "`S = batch * (sum_of_squares - workers * mean_square) / (workers - 1)`, and G with this S.",
        ],
        solution=(
            "def noise_scale(sum_of_squares, mean_square, workers, batch):\n"
            "    S = batch * (sum_of_squares - workers * mean_square) / (workers - 1)\n"
            "    G = mean_square - S / (workers * batch)\n"
            "    return S / G\n"
        ),
    ),
    "3.warm-up": Check(
        function="rate_at",
        cases=[(0, 0.1, 8, 100), (50, 0.1, 8, 100), (100, 0.1, 8, 100), (500, 0.02, 4, 60)],
        expected=_warmed_up,
        why="That is the gradual warm-up: the same amount is added at every step until the scaled rate is reached.",
        hints=[
            "At step 0 the rate is the base rate, at the last step of the warm-up `workers` times that.",
            "With `f = min(step / warmup_steps, 1)` the rate is `base_rate * (1 + f * (workers - 1))`.",
        ],
        solution=(
            "def rate_at(step, base_rate, workers, warmup_steps):\n"
            "    f = min(step / warmup_steps, 1)\n"
            "    return base_rate * (1 + f * (workers - 1))\n"
        ),
    ),
    "3.local-rate": Check(
        function="local_rate",
        cases=[
            ([3.0, 4.0], [0.0, 10.0], 0.1),
            ([1.0, 0.0], [0.0, 0.25], 0.001),
            ([2.0, 2.0, 1.0], [1.0, 2.0, 2.0], 0.01),
        ],
        expected=_local_rate,
        why="The update of each layer is `trust` times as long as its weights, whatever its gradient.",
        hints=[
            "Both norms are the square root of the sum of squares.",
            "`trust * norm(weights) / norm(gradient)`, with `norm = lambda v: sum(x * x for x in v) ** 0.5`.",
        ],
        solution=(
            "def local_rate(weights, gradient, trust):\n"
            "    norm = lambda vector: sum(x * x for x in vector) ** 0.5\n"
            "    return trust * norm(weights) / norm(gradient)\n"
        ),
    ),
}
"""how the exercises are judged, by key"""
