"""What happened, in one sentence."""

from __future__ import annotations

from rueda.report.model import Entry, Section
from rueda.terminal.numbers import count, percent, points, things


def sentences(section: Section) -> list[str]:
    r"""Tell what happened, in a sentence for each kind of study.

    >>> rows = [Entry(name="one-worker", workers=1, test_accuracy=0.71, role="base"),
    ...         Entry(name="naive", workers=8, test_accuracy=0.42, against=-29.0, role="naive"),
    ...         Entry(name="lamb", workers=8, test_accuracy=0.712, against=0.2, verdict="kept", role="best")]
    >>> print(*sentences(Section(title="", task="", entries=rows, is_study=True)))
    8 workers with nothing else changed lose 29.0 points of test accuracy; lamb brings them back (71.2...).
    """
    parts = [_techniques(section)] if section.is_study else [_runs(section)] if section.entries else []
    parts += section.told
    return [part for part in parts if part] or ["Nothing was measured yet."]


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
    seed = ", one seed," if best.num_seeds == 1 < base.num_seeds else ""
    ends = f"{percent(best.test_accuracy)}{seed} against {percent(base.test_accuracy)}"
    if not lost:
        return f"{start}; the best row is {best.name} ({ends})."
    if best.verdict == "kept":
        same = f" in the same {count(best.epochs)} epochs" if best.epochs and best.epochs == base.epochs else ""
        return f"{start}; {best.name} brings {lost} back{same} ({ends})."
    if naive.against is not None and best.against <= naive.against:
        return f"{start}, and no technique wins any of them back."
    return f"{start}; the best, {best.name}, still ends {abs(best.against):.1f} points below one worker ({ends})."


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
        return f"{percent(only.test_accuracy)} test accuracy after {what}." if rows else f"{what}."
    if not rows:
        return f"{len(section.entries)} runs."
    best = max(rows, key=lambda entry: entry.test_accuracy or 0)
    return f"The best of {len(section.entries)} runs is {best.name}: {percent(best.test_accuracy)} test accuracy."
