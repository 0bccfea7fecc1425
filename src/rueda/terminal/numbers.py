"""Formatting of numbers, times and sizes, the same for the terminal and the report."""

from __future__ import annotations

import math
from typing import Any

NONE = "–"
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def number(value: Any) -> float | None:
    """Return a finite number unchanged, and None for anything else.

    >>> number(3), number("3"), number(float("inf")), number(True)
    (3, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # an integer that is too large for a float
        return None


def percent(fraction: float | None, spread: float | None = None, *, places: int = 1) -> str:
    r"""Write a fraction in percent, with its spread over seeds if there is one.

    >>> percent(0.7134), percent(0.7134, 0.004), percent(0.7134, places=0), percent(None)
    ('71.3\xa0%', '71.3\xa0±\xa00.4\xa0%', '71\xa0%', '–')
    """
    if fraction is None or number(100 * fraction) is None:
        return NONE
    text = fixed(100 * fraction, places, 100 * spread if spread else None) + " %"
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def points(value: float | None) -> str:
    """Write a difference in percentage points, with its sign.

    >>> points(-28.94), points(0.3), points(0.01)
    ('−28.9', '+0.3', '±0.0')
    """
    if value is None or number(value) is None:
        return NONE
    text = f"{abs(value):.1f}"
    return ("±" if text == "0.0" else "+" if value > 0 else "−") + text


def count(value: float | None) -> str:
    """Write a count; a dash stands for None and for numbers that are not finite.

    >>> count(1164), count(5.6), count(None), count(0.0123), count(float("nan"))
    ('1,164', '5.6', '–', '0.0123', '–')
    """
    if value is None or number(value) is None:
        return NONE
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.3g}"


def counts(mean: float | None, between: tuple[int, int] | None) -> str:
    """Write the mean of some counts, with the least and the most of them where they differ.

    >>> counts(1362, (1291, 1465)), counts(1164, None)
    ('1,362 (1,291 to 1,465)', '1,164')
    """
    return count(mean) + (f" ({count(between[0])} to {count(between[1])})" if between else "")


def things(value: float | None, name: str) -> str:
    """Write a count and a noun, in the plural unless the count is 1.

    >>> things(1, "epoch"), things(1164, "update"), things(None, "epoch")
    ('1 epoch', '1,164 updates', '– epochs')
    """
    return f"{count(value)} {name}{'s' * (value != 1)}"


def duration(seconds: float | None) -> str:
    """Write a duration in seconds, minutes or hours.

    >>> duration(3.21), duration(75), duration(4000)
    ('3.2 s', '1 min 15 s', '1 h 6 min')
    """
    if seconds is None or number(seconds) is None:
        return NONE
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def predicted_time(seconds: float | None) -> str:
    """Write a predicted duration with two significant digits, since it is not known more precisely.

    >>> [predicted_time(3600 * hours) for hours in (0.001, 0.2, 5, 100, 1000)]
    ['3.6 s', '12 min', '5 h', '4.2 days', '42 days']
    >>> predicted_time(99.7 * 86400)
    '100 days'
    """
    if seconds is None or number(seconds) is None:
        return NONE
    for size, least, unit in ((86400, 2 * 86400, "days"), (3600, 1.5 * 3600, "h"), (60, 60, "min")):
        if seconds >= least:
            return f"{digits(seconds / size, 2)} {unit}"
    return f"{digits(seconds, 2)} s"


def milliseconds(seconds: float | None, spread: float | None = None) -> str:
    """Write a duration below ten seconds in milliseconds, with its spread if any; a longer one as `duration` does.

    >>> milliseconds(0.0123456), milliseconds(1.5904, 0.45), milliseconds(75), milliseconds(float("inf"))
    ('12.3 ms', '1,590 ± 450 ms', '1 min 15 s', '–')
    >>> milliseconds(0.9999), milliseconds(0.0123456, 0.00021), milliseconds(0.002, float("nan"))
    ('1,000 ms', '12.35 ± 0.21 ms', '2 ms')
    """
    if seconds is None or number(seconds) is None or seconds >= 10:
        return duration(seconds)
    return with_spread(1e3 * seconds, 1e3 * (spread or 0)) + " ms"


def digits(value: float | None, num_digits: int = 3) -> str:
    """Write a number with ``num_digits`` significant digits; below a million, no digit before the point is rounded.

    >>> digits(9936.4), digits(0.0123456), digits(18.7923), digits(1590.4, 2), digits(None), digits(2.5e7)
    ('9,936', '0.0123', '18.8', '1,590', '–', '2.5e+07')
    >>> digits(999.96), digits(-999.96), digits(99.7, 2), digits(999_999.6)
    ('1,000', '-1,000', '100', '1e+06')
    """
    if value is None or number(value) is None:
        return NONE
    rounded = abs(float(f"{value:.{num_digits}g}"))  # 999.96 is rounded to 1,000, which has four digits
    return f"{value:,.0f}" if 10**num_digits <= rounded < 1e6 else f"{value:.{num_digits}g}"


def money(value: float | None) -> str:
    """Write an amount of money with two decimal places, or two significant digits if it is small.

    >>> money(1234.5), money(0.5), money(0.0000213), money(0.0), money(None)
    ('1,234.50', '0.50', '0.000021', '0.00', '–')
    """
    places = 1 - math.floor(math.log10(value)) if value and 0 < value < 0.1 else 2
    return fixed(value, places)


def fixed(value: float | None, places: int, spread: float | None = None) -> str:
    """Write a number with a fixed number of decimal places, and its spread if there is one.

    >>> fixed(87.12, 1, 0.41), fixed(87.12, 1), fixed(0.0312, 4, 0.0), fixed(None, 1)
    ('87.1 ± 0.4', '87.1', '0.0312 ± 0.0000', '–')
    """
    if value is None or number(value) is None:
        return NONE
    return f"{value:,.{places}f}" + (f" ± {spread:,.{places}f}" if number(spread) is not None else "")


def with_spread(value: float | None, spread: float | None) -> str:
    """Write a mean and its spread, both to the second significant digit of the spread.

    >>> with_spread(10.0589, 0.25307), with_spread(2901.38, 479.9), with_spread(470.0, None), with_spread(None, 1.0)
    ('10.06 ± 0.25', '2,901 ± 480', '470', '–')
    """
    found = number(spread)
    if not found or found < 1e-9:
        return digits(value)
    return fixed(value, max(0, 1 - math.floor(math.log10(found))), found)


def operations(count: float) -> str:
    """Return a number of floating-point operations with its unit.

    >>> operations(1664), operations(67_608_576), operations(24.3e9), operations(12)
    ('1.66 kflop', '67.6 Mflop', '24.3 Gflop', '12 flop')
    """
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{digits(count / size)} {prefix}flop"
    return f"{digits(count)} flop"


def amount(num_bytes: float) -> str:
    """Write a number of bytes in B, kB, MB or GB.

    >>> amount(4), amount(16_777_216), amount(2.5e9)
    ('4 B', '17 MB', '2.5 GB')
    """
    for size, unit in _UNITS:
        if num_bytes >= size:
            value = num_bytes / size
            return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
    return f"{num_bytes:.0f} B"


def bits_per_second(bandwidth: float) -> str:
    """Write a bandwidth, given in bytes per second, in Gbit/s, Mbit/s or kbit/s, as links are named.

    >>> bits_per_second(0.125e9), bits_per_second(12.5e6), bits_per_second(3.1e3)
    ('1 Gbit/s', '100 Mbit/s', '24.8 kbit/s')
    """
    for size, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s")):
        if 8 * bandwidth >= size:
            return f"{digits(8 * bandwidth / size)} {unit}"
    return f"{digits(8 * bandwidth / 1e3)} kbit/s"
