"""What happened, in sentences: the headline of a section, and a recipe in a few words."""

from __future__ import annotations

from collections.abc import Iterable

from rueda.records.recipe.recipe import Recipe
from rueda.records.study import missing_control, remedies
from rueda.report.model import Entry, Section
from rueda.terminal.numbers import count, percent, points, things


def sentences(section: Section) -> list[str]:
    r"""Return sentences that say what happened, the main sentence first.

    >>> rows = [Entry(name="one-worker", workers=1, test_accuracy=0.71, role="base"),
    ...         Entry(name="naive", workers=8, test_accuracy=0.42, against=-29.0, role="naive"),
    ...         Entry(name="lamb", workers=8, test_accuracy=0.712, against=0.2, verdict="kept", role="best")]
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


def accuracy(entry: Entry) -> str:
    """Write the test accuracy of a row with its spread over seeds; a single seed has no spread, and the text says so.

    >>> accuracy(Entry(name="lamb", test_accuracy=0.9))
    '90.0\xa0%, one seed'
    """
    one = ", one seed" if entry.num_seeds == 1 else ""
    return percent(entry.test_accuracy, entry.test_accuracy_spread) + one


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
    base, naive, best = (section.with_role(role) for role in ("base", "naive", "best"))
    if naive is None or (naive.against is None and not naive.diverged):
        return _best_of(section, base)
    who = f"{naive.workers or 'Many'}{' rehearsed' * naive.rehearsed} workers with nothing else changed"
    if naive.diverged:
        start, lost = f"{who} diverge", "the accuracy"
    elif naive.verdict == "kept" or (naive.against or 0) >= 0:
        start, lost = f"{who} keep one worker's test accuracy ({points(naive.against)} points)", ""
    else:
        start, lost = f"{who} lose {abs(naive.against or 0):.1f} points of test accuracy", "them"
    if best is None or base is None or best.against is None:
        return start + "."
    ends = f"{accuracy(best)}, against {accuracy(base)}"
    number = len({tuple(remedies(one.name)) for one in candidates(section.entries, base)})
    which = f"the best of {number} remedies" if number > 1 else "the only remedy"  # chosen by its test accuracy
    is_better = naive.against is None or naive.diverged or best.against > naive.against
    if not lost:
        if not is_better:
            return f"{start}; {which}, {best.name}, does no better ({ends})."
        return f"{start}; {which} is {best.name} ({ends})."
    if best.verdict == "kept":
        same = f" in the same {count(best.epochs)} epochs" if best.epochs and best.epochs == base.epochs else ""
        chosen = f", {which}," * (number > 1)
        return f"{start}; {best.name}{chosen} recovers {lost}{same} ({ends})."
    if not is_better:
        return f"{start}, and no remedy recovers any of them."
    return f"{start}; {which}, {best.name}, still ends {abs(best.against):.1f} points below one worker ({ends})."


def _control(section: Section) -> str:
    """Describe one worker with the best row's remedy, which shows what the remedy gains without more workers."""
    best, control = section.with_role("best"), section.with_role("control")
    if best is None:
        return ""
    if control is None:
        return missing_control(best.name)
    return f"The control, one worker with {'+'.join(remedies(control.name))}, reaches {accuracy(control)}."


def candidates(entries: Iterable[Entry], base: Entry | None) -> list[Entry]:
    """Return the rows of many workers with remedies, of which the best is chosen by its test accuracy.

    Rows that train for as many epochs as one worker are preferred, if there are any.
    """
    rest = [one for one in entries if one.role in ("other", "best") and one.test_accuracy is not None]
    many = [one for one in rest if not one.diverged and (base is None or one.workers != base.workers)]
    return [one for one in many if base is not None and one.epochs == base.epochs] or many


def _best_of(section: Section, base: Entry | None) -> str:
    rows = [entry for entry in section.entries if entry.test_accuracy is not None and not entry.diverged]
    if not rows:
        return "No row has a test accuracy yet."
    best = max(rows, key=lambda entry: entry.test_accuracy or 0)
    against = "" if base is None or best is base else f", against {percent(base.test_accuracy)} with one worker"
    return f"The best of {len(rows)} rows is {best.name}: {percent(best.test_accuracy)} test accuracy{against}."


def _runs(section: Section) -> str:
    rows = [entry for entry in section.entries if entry.test_accuracy is not None]
    if len(section.entries) == 1:
        (only,) = section.entries
        if only.diverged:
            return f"{only.name} diverged in the epoch that ended at update {count(only.updates)}."
        what = f"{things(only.epochs, 'epoch')}, {things(only.updates, 'update')}"
        reached = percent(only.test_accuracy, only.test_accuracy_spread)
        return f"{reached} test accuracy after {what}." if rows else f"{what}."
    what = f"{len(section.entries)} {'recipes' if len(section.lines) > len(section.entries) else 'runs'}"
    if not rows:
        return f"{what}."
    best = max(rows, key=lambda entry: entry.test_accuracy or 0)
    reached = percent(best.test_accuracy, best.test_accuracy_spread)
    return f"The best of {what} is {best.name}: {reached} test accuracy."
