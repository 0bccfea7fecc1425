"""From text or TOML to the type that a field declares, with one clear line where they do not fit."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin

from rueda.errors import RecipeError

_NOUNS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def parse_setting(setting: str) -> tuple[str, str]:
    """Split ``name=value``.

    >>> parse_setting("batch = 512")
    ('batch', '512')
    """
    name, equals, text = setting.partition("=")
    if not equals or not name.strip():
        raise RecipeError("--set", expected="name=value", got=setting, do="write e.g. --set batch=512")
    return name.strip(), text.strip()


def take_value(name: str, value: Any, hint: Any) -> Any:
    """Convert a value to its declared type; text from a command line is read as that type.

    >>> take_value("batch", "512", int), take_value("milestones", "2,4", tuple[float, ...])
    (512, (2.0, 4.0))
    >>> take_value("epochs", 2.5, int)
    Traceback (most recent call last):
    rueda.errors.RecipeError: epochs: expected a whole number, got 2.5; correct it
    """
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        options = [option for option in get_args(hint) if option is not type(None)]
        if value is None or (isinstance(value, str) and value == "none" and len(options) < len(get_args(hint))):
            return None
        for option in options:
            try:
                return take_value(name, value, option)
            except RecipeError:
                continue
        return _refuse(name, value, " or ".join(_NOUNS[option] for option in options))
    if origin is tuple:
        parts = [part for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        if not isinstance(parts, (list, tuple)):
            return _refuse(name, value, "a list of numbers")
        return tuple(take_value(name, part, get_args(hint)[0]) for part in parts)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            return _refuse(name, value, "a table of names and values")
        return {str(key): take_value(f"{name}.{key}", item, get_args(hint)[1]) for key, item in value.items()}
    return _take_scalar(name, value, hint)


def _take_scalar(name: str, value: Any, kind: type) -> Any:
    if kind is bool:
        known = {"true": True, "false": False}
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in known:
            return known[value.lower()]
    elif kind is str:
        if isinstance(value, str):
            return str(value)
    elif not isinstance(value, bool):
        try:
            number = float(value)
            if kind is float or number.is_integer():
                return kind(number) if kind is float else int(value if isinstance(value, int) else number)
        except (TypeError, ValueError, OverflowError):
            pass
    return _refuse(name, value, _NOUNS[kind])


def _refuse(name: str, value: Any, expected: str) -> Any:
    raise RecipeError(name, expected=expected, got=value, do="correct it")
