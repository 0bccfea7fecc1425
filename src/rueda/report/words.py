"""What happened, in sentences: the headline of a section, and a recipe in a few words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rueda.records.comparison import Comparison
from rueda.records.metric import ACCURACY, MetricInfo
from rueda.records.recipe.recipe import Recipe
from rueda.records.study import control_of, missing_control, remedies
from rueda.report.model import Entry, Section
from rueda.terminal.metrics import write_change, write_interval, write_value
from rueda.terminal.numbers import count, things
from rueda.terminal.study_words import describe


def sentences(section: Section) -> list[str]:
    r"""Return sentences that say what happened, the main sentence first.

    >>> rows = [Entry(name="one-worker", workers=1, test=0.71, role="base"),
    ...         Entry(name="naive", workers=8, test=0.42, against=-29.0, role="naive"),
    ...         Entry(name="lamb", workers=8, test=0.712, against=0.2, verdict="kept", role="best")]
    >>> print(*sentences(Section(title="", task="", entries=rows, is_study=True)), sep="\n")
    8 workers with nothing else changed lose 29.0 points of test accuracy; lamb recovers them (71.2...).
    The control is missing: no row trains one worker with lamb. Add it with --rows one-worker+lamb.
    """
    if section.is_study:
        parts = [_techniques(section), _control(section)]
    else:
        parts = [_runs(section)] if section.entries else []
    parts += section.told
    return [part for part in parts if part] or ["Nothing was measured yet."]


def result(entry: Entry, metric: MetricInfo = ACCURACY) -> str:
    """Write the metric of a row with its spread over seeds; a single seed has no spread, and the text says so.

    >>> result(Entry(name="lamb", test=0.9))
    '90.0\xa0%, one seed'
    """
    one = ", one seed" if entry.num_seeds == 1 else ""
    return write_value(metric, entry.test, entry.test_spread) + one


def describe_recipe(recipe: Recipe) -> list[str]:
    """Describe a recipe in a few short phrases; settings that are off are left out.

    >>> describe_recipe(Recipe(workers=8, batch=128, scaling="linear", warmup_epochs=3, schedule="cosine", epochs=12))
    ['8 × 128 = 1,024 examples an update', 'sgd, rate 0.05, linear scaling', 'warm-up 3 epochs', 'cosine schedule']
    """
    local = f"{recipe.workers} × {recipe.batch:,}" + (f" × {recipe.accumulate}" if recipe.accumulate > 1 else "")
    scaling = "" if recipe.scaling == "none" else f", {recipe.scaling} scaling"
    words: list[tuple[bool, str]] = [
        (True, f"{local} = {recipe.global_batch:,} examples an update"),
        (True, f"{recipe.optimizer}, rate {recipe.rate:g}{scaling}"),
        (recipe.adascale, "AdaScale"),
        (recipe.warmup_epochs > 0, f"warm-up {things(recipe.warmup_epochs, 'epoch')}"),
        (recipe.schedule != "constant", f"{recipe.schedule} schedule"),
        (recipe.growth_factor is not None, f"batch grows × {recipe.growth_factor or 1:.3g}"),
        (recipe.growth_from_noise, "batch follows the noise scale"),
        (recipe.weight_decay > 0, f"weight decay {recipe.weight_decay:g}"),
        (recipe.ghost_batch is not None, f"ghost batches of {recipe.ghost_batch}"),
        (recipe.sync_batch_norm, "batch norm over all workers"),
        (recipe.gradient_noise > 0, f"gradient noise {recipe.gradient_noise:g}"),
        (recipe.additive_noise > 0, f"additive noise {recipe.additive_noise:g}"),
        (recipe.keep_updates, "as many updates as one worker"),
        (bool(recipe.model), ", ".join(f"{name} = {value}" for name, value in recipe.model.items())),
        (recipe.precision not in ("auto", "float32"), recipe.precision),
    ]
    return [text for told, text in words if told]


def _techniques(section: Section) -> str:
    metric = section.metric
    base, naive, best = (section.with_role(role) for role in ("base", "naive", "best"))
    if naive is None or (naive.against is None and not naive.diverged):
        return _best_of(section, base)
    start, lost = _naive(naive, metric)
    if best is None or base is None or best.against is None:
        return start + "."
    strongest, found = _strongest(section, base, best)
    against = result(strongest, metric) + f" of the strongest row of one worker, {strongest.name}" * (
        strongest is not base
    )
    interval = "" if found.interval is None else f"; difference {describe(found, metric)}"
    ends = f"{result(best, metric)}, against {against}{interval}"
    number = len({tuple(remedies(one.name)) for one in candidates(section.entries, base)})
    which = f"the best of {number} remedies" if number > 1 else "the only remedy"
    is_better = naive.against is None or naive.diverged or metric.score(best.against) > metric.score(naive.against)
    if not lost:
        if not is_better:
            return f"{start}; {which}, {best.name}, does no better ({ends})."
        return f"{start}; {which} is {best.name} ({ends})."
    chosen = f", {which}," * (number > 1)
    if found.verdict == "kept":
        same = f" in the same {count(best.epochs)} epochs" if best.epochs and best.epochs == base.epochs else ""
        return f"{start}; {best.name}{chosen} recovers {lost}{same} ({ends})."
    if not is_better:
        return f"{start}; {which}, {best.name}, does no better ({ends})."
    if found.verdict == "undecided":
        return f"{start}; whether {best.name}{chosen} recovers {lost} is undecided ({ends})."
    who = "one worker" if strongest is base else "the strongest row of one worker"
    return f"{start}; {which}, {best.name}, still ends {_apart(metric, found.change)} {who} ({ends})."


def _naive(naive: Entry, metric: MetricInfo) -> tuple[str, str]:
    """Say what many workers with nothing else changed lose, and by which word the rest of the sentence calls it."""
    who = f"{naive.workers or 'Many'}{' rehearsed' * naive.rehearsed} workers with nothing else changed"
    is_worse = metric.score(naive.against or 0) < 0
    if naive.diverged:
        return f"{who} diverge", f"the {metric.name}"
    if naive.verdict == "undecided":
        interval = "one seed" if naive.interval is None else write_interval(metric, naive.interval)
        return (
            f"{who} end {_apart(metric, naive.against)} one worker's test {metric.name}, undecided ({interval})",
            "it",
        )
    if naive.verdict == "kept" or not is_worse:
        unit = " points" * metric.percent
        return f"{who} keep one worker's test {metric.name} ({write_change(metric, naive.against)}{unit})", ""
    if metric.percent and metric.higher_is_better:
        return f"{who} lose {abs(naive.against or 0):.1f} points of test {metric.name}", "them"
    return f"{who} end {_apart(metric, naive.against)} one worker's test {metric.name}", "it"


def _strongest(section: Section, base: Entry, best: Entry) -> tuple[Entry, Comparison]:
    """Return the strongest row of one worker, and how the best row compares with it."""
    strongest = next((one for one in section.entries if one.name == section.strongest), None)
    if strongest is None or section.remains is None:
        return base, Comparison(change=best.against, interval=best.interval, verdict=best.verdict)
    return strongest, section.remains


def _apart(metric: MetricInfo, change: float | None) -> str:
    """Write how far a result is above or below another.

    >>> _apart(MetricInfo(name="loss", higher_is_better=False), 12.34)
    '12.3 % above'
    """
    unit = "points" if metric.percent else "%"
    return f"{abs(change or 0):.1f} {unit} {'above' if (change or 0) > 0 else 'below'}"


def _control(section: Section) -> str:
    """Describe one worker with the best row's remedy, which shows what the remedy gains without more workers."""
    best, control = section.with_role("best"), section.with_role("control")
    if best is None:
        return ""
    told = ""
    if control is not None and control.name != section.strongest:
        told = f"One worker with {'+'.join(remedies(control.name))} reaches {result(control, section.metric)}."
    wanted = control_of(best.name)
    is_missing = wanted is not None and not any(one.name == wanted for one in section.entries)
    return f"{told} {missing_control(best.name) * is_missing}".strip()


def candidates(entries: Iterable[Entry], base: Entry | None) -> list[Entry]:
    """Return the rows of many workers with remedies, of which the best is chosen by its metric.

    Rows that train for as many epochs as one worker are preferred, if there are any.
    """
    rest = [one for one in entries if one.role in ("other", "best") and one.test is not None]
    many = [one for one in rest if not one.diverged and (base is None or one.workers != base.workers)]
    return [one for one in many if base is not None and one.epochs == base.epochs] or many


def best_entry(rows: Sequence[Entry], metric: MetricInfo) -> Entry:
    """Return the best of some rows that have a value: on validation data, where there are some."""
    return max(rows, key=lambda entry: metric.score(entry.deciding or 0))


def _best_of(section: Section, base: Entry | None) -> str:
    metric = section.metric
    rows = [entry for entry in section.entries if entry.test is not None and not entry.diverged]
    if not rows:
        return f"No row has a test {metric.name} yet."
    best = best_entry(rows, metric)
    against = "" if base is None or best is base else f", against {write_value(metric, base.test)} with one worker"
    return f"The best of {len(rows)} rows is {best.name}: {write_value(metric, best.test)} test {metric.name}{against}."


def _runs(section: Section) -> str:
    metric = section.metric
    rows = [entry for entry in section.entries if entry.test is not None]
    if len(section.entries) == 1:
        (only,) = section.entries
        if only.diverged:
            return f"{only.name} diverged in the epoch that ended at update {count(only.updates)}."
        what = f"{things(only.epochs, 'epoch')}, {things(only.updates, 'update')}"
        reached = write_value(metric, only.test, only.test_spread)
        return f"{reached} test {metric.name} after {what}." if rows else f"{what}."
    what = f"{len(section.entries)} {'recipes' if len(section.lines) > len(section.entries) else 'runs'}"
    if not rows:
        return f"{what}."
    best = best_entry(rows, metric)
    reached = write_value(metric, best.test, best.test_spread)
    return f"The best of {what} is {best.name}: {reached} test {metric.name}."
