"""The learning rate of many workers: scaling rules and warm-up, as the library's schedule gives them."""

from __future__ import annotations

from rueda.labs.lab_3.small_task import NAIVE, RECIPE, WORKERS, compare, progress_plot, train
from rueda.optim.rates import build_schedule
from rueda.optim.scaling import RULES, rate_factor
from rueda.records.recipe.recipe import Recipe
from rueda.records.study import BASELINE
from rueda.report.figures.parts import curve, log_axis
from rueda.report.figures.techniques import techniques
from rueda.report.model import Table
from rueda.report.plot import Plot

GOYAL = Recipe(batch=256, rate=0.1, momentum=0.9, epochs=90, schedule="step", milestones=(30, 60, 80))
"""ResNet-50 on ImageNet as Goyal et al. 2017 train it, on one server: a batch of 256"""
IMAGENET = 1_281_167
SCALES = (1, 2, 4, 8, 16, 32)
RULE_NAMES = tuple(name for name in RULES if name != "legw")


def scaled_rate(rule: str, base_rate: float, base_batch: int, batch: int) -> float:
    """Return the rate of a batch by a scaling rule of the library.

    >>> scaled_rate("linear", 0.1, 256, 8192), scaled_rate("sqrt", 0.1, 256, 1024)
    (3.2, 0.2)
    """
    return base_rate * rate_factor(rule, batch / base_batch)


def rules_figure(workers: int) -> Plot:
    """Draw the rate against the batch for every rule, with this number of workers marked."""
    batches = [256 * scale for scale in SCALES]
    traces = [
        curve(
            batches, [scaled_rate(rule, GOYAL.rate, 256, batch) for batch in batches], hue, mode="lines+markers",
            name=rule, hovertemplate=f"{rule}: rate %{{y:.3g}} at batch %{{x:,}}",
        )
        for rule, hue in zip(RULE_NAMES, ("@ink", "@blue", "@orange"), strict=True)
    ]  # fmt: skip
    here = 256 * workers
    traces.append(
        {
            "type": "scatter", "mode": "markers", "x": [here] * len(RULE_NAMES), "showlegend": False,
            "y": [scaled_rate(rule, GOYAL.rate, 256, here) for rule in RULE_NAMES],
            "marker": {"size": 14, "symbol": "star", "color": "@red"},
            "hovertemplate": "rate %{y:.3g} at batch %{x:,}",
        }
    )  # fmt: skip
    return Plot(
        name="rules", title="The rate that each rule gives", traces=traces, half=True,
        layout={"xaxis": log_axis("global batch", batches, tickangle=0), "showlegend": True,
                "yaxis": {"title": "learning rate", "type": "log"}},
        narrow={"xaxis": log_axis("global batch", batches[::2], tickangle=0)},
    )  # fmt: skip


def schedule_figure(workers: int, rule: str, warmup_epochs: float) -> list[Plot]:
    """Draw the rules, and the learning rate of every epoch of a training of ResNet-50 on so many servers."""
    recipe = GOYAL.change(workers=workers, scaling=rule, warmup_epochs=float(warmup_epochs))
    per_epoch = IMAGENET // recipe.global_batch
    schedule = build_schedule(recipe, per_epoch)
    corners = sorted({*(epoch / 4 for epoch in range(4 * recipe.epochs + 1)), *(at - 1e-3 for at in recipe.milestones)})
    rates = [schedule(epoch * per_epoch) for epoch in corners]
    plot = Plot(
        name="schedule", title="The learning rate along the training", half=True,
        traces=[curve(corners, rates, "@blue", name="rate", hovertemplate="epoch %{x:.3g}: rate %{y:.3g}")],
        layout={"xaxis": "epoch", "yaxis": {"title": "learning rate", "rangemode": "tozero"}},
        note=f"Global batch {recipe.global_batch:,}: {per_epoch:,} updates an epoch; {schedule}.",
    )  # fmt: skip
    return [rules_figure(workers), plot]


def trained_figure(rule: str, warmup_epochs: float, batch_norm: str) -> list[Plot | Table]:
    """Train eight workers with a rule, a warm-up and a network, and draw them beside one worker and nothing changed."""
    has_norm = batch_norm == "on"
    name = f"{rule}{', warm-up' * (warmup_epochs > 0)}{', batch norm' * has_norm}"
    base = RECIPE.change(model={**RECIPE.model, "batch_norm": True}) if has_norm else RECIPE
    changed = base.change(workers=WORKERS, scaling=rule, warmup_epochs=float(warmup_epochs))
    lines = [train(RECIPE, BASELINE), train(RECIPE.change(workers=WORKERS), NAIVE)]
    if has_norm:
        lines.append(train(base, f"{BASELINE}+batch-norm"))
    if changed != RECIPE.change(workers=WORKERS):
        lines.append(train(changed, name))
    section = compare(lines)
    return [techniques(section), progress_plot(section)]
