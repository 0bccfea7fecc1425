"""Numbers that a user gives in environment variables, or in the options that stand for them."""

from __future__ import annotations

import math
from collections.abc import Callable

from rueda.errors import WorldError


def read_number(
    name: str, value: str | float, valid: Callable[[float], bool], *, expected: str, do: str = "correct it"
) -> float:
    """Return a number that a user gave, or refuse what is not one or is not valid.

    >>> read_number("RUEDA_TIMEOUT", "30", lambda seconds: seconds > 0, expected="a positive number of seconds")
    30.0
    >>> read_number("RUEDA_TIMEOUT", "soon", lambda seconds: seconds > 0, expected="a positive number of seconds")
    Traceback (most recent call last):
    rueda.errors.WorldError: RUEDA_TIMEOUT: expected a positive number of seconds, got 'soon'; correct it

    Args:
        name: the variable or the option, for the message.
        value: what was given.
        valid: whether a number is valid; it must be false for nan.
        expected: what is valid, for the message.
        do: what the user should do, for the message.
    """
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not valid(number):
        raise WorldError(name, expected=expected, got=value, do=do)
    return number
