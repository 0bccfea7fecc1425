"""Numbers as people write them, and what happened in one sentence."""

from __future__ import annotations

from rueda.report.model import Entry, Section, number

NONE = "–"


def percent(fraction: float | None, spread: float | None = None) -> str:
    r"""Write a fraction, with its spread over seeds if there is one.

    >>> percent(0.7134), percent(0.7134, 0.004), percent(None)
    ('71.3\xa0%', '71.3\xa0±\xa00.4\xa0%', '–')
    """
    if fraction is None or number(100 * fraction) is None:
        return NONE
    text = f"{100 * fraction:.1f}" + (f" ± {100 * spread:.1f}" if spread and number(100 * spread) else "") + " %"
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def points(value: float | None) -> str:
    """Write a difference in points.

    >>> points(-28.94), points(0.3), points(0.01)
    ('−28.9', '+0.3', '±0.0')
    """
    if value is None or number(value) is None:
        return NONE
    text = f"{abs(value):.1f}"
    return ("±" if text == "0.0" else "+" if value > 0 else "−") + text


def count(value: float | None) -> str:
    """Write a number of things; what is no finite number is none.

    >>> count(1164), count(5.6), count(None), count(0.0123), count(float("nan"))
    ('1,164', '5.6', '–', '0.0123', '–')
    """
    if value is None or number(value) is None:
        return NONE
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.3g}"


def things(value: float | None, name: str) -> str:
    """Write a number of things with their name.

    >>> things(1, "epoch"), things(1164, "update"), things(None, "epoch")
    ('1 epoch', '1,164 updates', '– epochs')
    """
    return f"{count(value)} {name}{'s' * (value != 1)}"


def duration(seconds: float | None) -> str:
    """Write a time.

    >>> duration(3.21), duration(75), duration(4000)
    ('3.2 s', '1 min 15 s', '1 h 6 min')
    """
    if seconds is None or number(seconds) is None:
        return NONE
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def milliseconds(seconds: float | None, spread: float | None = None) -> str:
    """Write a short time with three digits, or all before the point; from ten seconds on in seconds.

    >>> milliseconds(0.0123456), milliseconds(1.5904, 0.45), milliseconds(75), milliseconds(float("inf"))
    ('12.3 ms', '1,590 ± 450 ms', '1 min 15 s', '–')
    """
    if seconds is None or number(seconds) is None or seconds >= 10:
        return duration(seconds)
    return digits(1e3 * seconds, 3) + (f" ± {digits(1e3 * spread, 2)}" if spread and number(spread) else "") + " ms"


def digits(value: float | None, num_digits: int = 3) -> str:
    """Write so many digits, and all of those before the point.

    >>> digits(9936.4), digits(0.0123456), digits(18.7923), digits(1590.4, 2), digits(None), digits(2.5e7)
    ('9,936', '0.0123', '18.8', '1,590', '–', '2.5e+07')
    """
    if value is None or number(value) is None:
        return NONE
    return f"{value:,.0f}" if 10**num_digits <= abs(value) < 1e6 else f"{value:.{num_digits}g}"


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
