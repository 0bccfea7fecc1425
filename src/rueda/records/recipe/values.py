"""Convert values from a command line or a TOML file to the type that a field of the recipe declares."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Union, get_args, get_origin

import tomlkit
from tomlkit.exceptions import TOMLKitError

from rueda.errors import RecipeError

_NOUNS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def parse_setting(setting: str) -> tuple[str, Any]:
    """Split ``name=value``; a TOML list, table or quoted string is read, anything else stays text for `take_value`.

    >>> parse_setting("batch = 512"), parse_setting("milestones=[3.2]"), parse_setting('optimizer="lamb"')
    (('batch', '512'), ('milestones', [3.2]), ('optimizer', 'lamb'))
    """
    name, equals, text = setting.partition("=")
    if not equals or not name.strip():
        raise RecipeError("--set", expected="name=value", got=setting, do="write e.g. --set batch=512")
    name, text = name.strip(), text.strip()
    if not text.startswith(("[", "{", '"', "'")):
        return name, text
    try:
        return name, tomlkit.value(text).unwrap()
    except TOMLKitError as error:
        raise RecipeError(f"--set {setting}: expected a value as in a recipe file, got: {error}; correct it") from None


def refuse_settings(settings: Iterable[str], instead: Mapping[str, str]) -> None:
    """Refuse settings of fields that a command decides by itself; ``instead`` says what to do for each such field.

    >>> refuse_settings(["workers=4"], {"workers": "give --workers 4"})
    Traceback (most recent call last):
    rueda.errors.RecipeError: --set workers has no effect in this command; give --workers 4
    """
    for name, _ in map(parse_setting, settings):
        if name in instead:
            raise RecipeError(f"--set {name} has no effect in this command; {instead[name]}")


def take_value(name: str, value: Any, hint: Any) -> Any:
    """Convert a value to its declared type; text from a command line is parsed as that type.

    Args:
        name: the name of the field, for messages.
        value: text, or a value that TOML can hold.
        hint: the declared type.

    Raises:
        RecipeError: the value does not fit.

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
        inner = get_args(hint)[1]  # what has one of its types already keeps it: "1" in quotes is a text
        return {
            str(key): item if type(item) in get_args(inner) else take_value(f"{name}.{key}", item, inner)
            for key, item in value.items()
        }
    return _take_scalar(name, value, hint)


def _take_scalar(name: str, value: Any, kind: type) -> Any:
    if kind is bool and str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    if kind is str and isinstance(value, str):
        return str(value)
    if kind in (int, float) and not isinstance(value, bool):
        for read in (int, float):  # a float would round a large whole number
            with suppress(TypeError, ValueError, OverflowError):
                if read is float or isinstance(value, (int, str)):
                    number = read(value)
                    if kind is int and abs(number) >= 2**63:
                        return _refuse(name, value, "a whole number of at most 64 bits")
                    if kind is float or number == int(number):
                        return kind(number)
    return _refuse(name, value, _NOUNS[kind])


def _refuse(name: str, value: Any, expected: str) -> Any:
    raise RecipeError(name, expected=expected, got=value, do="correct it")
