"""Records, each in one JSON file: written atomically, read strictly; a wrong file is refused in one line.

A record is a frozen dataclass that inherits from :class:`JsonRecord`. The types of its fields say what a file must
hold: every value is checked against them at any depth. A bounded number has a type of its own, such as
:data:`Positive`. Unknown names are ignored, so that an older Rueda reads a newer file of the same format.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from rueda.errors import RuedaError, RunError, read_failure
from rueda.files.atomic import plain, write_atomically
from rueda.files.text import read_text

FORMAT = 1

Kind = TypeVar("Kind")
Own = TypeVar("Own", bound="JsonRecord")


class Rule(NamedTuple):
    """A condition on the value of a field, beside its type: ``Annotated[int, Rule(...)]``."""

    expected: str
    holds: Callable[[Any], bool]


def at_least(least: float) -> Rule:
    """Make the rule that a number has a lower bound."""
    return Rule(f"{least:g} or more", lambda value: math.isfinite(value) and value >= least)


def one_of(*choices: str) -> Rule:
    """Make the rule that a text is one of several."""
    return Rule(f"{', '.join(choices[:-1])} or {choices[-1]}", lambda value: value in choices)


_POSITIVE = Rule("a number, more than 0", lambda value: math.isfinite(value) and value > 0)
_NOT_NEGATIVE = Rule("a number, 0 or more", lambda value: math.isfinite(value) and value >= 0)
Positive = Annotated[float, _POSITIVE]
PositiveInt = Annotated[int, _POSITIVE]
NotNegative = Annotated[float, _NOT_NEGATIVE]
NotNegativeInt = Annotated[int, _NOT_NEGATIVE]
Finite = Annotated[float, Rule("a number", math.isfinite)]
Fraction = Annotated[float, Rule("a fraction, from 0 to 1", lambda value: 0 <= value <= 1)]


@dataclass(frozen=True, kw_only=True)
class JsonRecord:
    """The base class of all records. A subclass names its file, its noun and its command, for messages."""

    FILE: ClassVar[str]
    """the name of the file in a folder"""
    NOUN: ClassVar[str]
    """what messages call the record, such as ``a profile``"""
    COMMAND: ClassVar[str]
    """the command that writes one, such as ``rueda measure``"""
    ERROR: ClassVar[type[RuedaError]] = RunError
    INDENT: ClassVar[int | None] = 1

    command: str = ""
    """the last command that wrote the file"""
    environment: dict[str, Any] = field(default_factory=dict)
    """the machine, versions and commit of the measurement"""
    format: int = FORMAT

    @property
    def provenance(self) -> dict[str, Any]:
        """The environment together with the command that wrote the record."""
        return {**self.environment, "command": self.command or self.environment.get("command")}

    def check(self) -> None:
        """Raise ValueError if fields contradict each other, so that the mistake is reported with the file's name."""

    def contents(self) -> dict[str, Any]:
        """Return what the file holds: the fields, the shared ones last. A subclass may add derived values."""
        values = asdict(self)
        shared = {item.name: values.pop(item.name) for item in fields(JsonRecord)}
        return {**values, **shared}

    def to_json(self) -> str:
        """Return strict JSON, in which NaN and infinity are null."""
        return json.dumps(plain(self.contents()), indent=self.INDENT, allow_nan=False)

    @classmethod
    def from_json(cls: type[Own], text: str, *, source: str | None = None, again: str | None = None) -> Own:
        """Read a record from JSON.

        Args:
            text: the contents of the file.
            source: the name of the file, for messages.
            again: the advice that ends a message; by default to run the command that writes such a record.

        Raises:
            RuedaError: the text is not JSON, is another record, has another format, or holds a wrong value.
        """
        source, again = source or cls.FILE, again or f"make it again with `{cls.COMMAND}`"
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise cls.ERROR(f"{source}: expected JSON, got: {error}; {again}") from None
        own = {item.name: item for item in fields(cls)}
        kind = own["kind"].default if "kind" in own else None
        got = data.get("kind") if isinstance(data, dict) else type(data).__name__
        if not isinstance(data, dict) or (kind is not None and got != kind):
            what = f"{cls.NOUN} (kind {kind!r})" if kind is not None else cls.NOUN
            raise cls.ERROR(f"{source}: expected {what}, got {got!r}; {again}")
        if data.get("format") != FORMAT:
            raise cls.ERROR(
                f"{source}: expected format {FORMAT}, got {data.get('format')!r}; {again}, or use a newer Rueda"
            )
        try:
            found = read_record(cls, data, cls.FILE.removesuffix(".json"))
            found.check()
        except (TypeError, ValueError, OverflowError) as error:
            raise cls.ERROR(f"{source}: {error}; {again}") from None
        return found

    @classmethod
    def load(cls: type[Own], file: Path | str, *, again: str | None = None) -> Own:
        """Read a record from a file, or from the file of the record's name in a folder; see :meth:`from_json`."""
        file = Path(file) / cls.FILE if Path(file).is_dir() else Path(file)
        try:
            text = read_text(file)
        except (OSError, UnicodeDecodeError) as error:
            advice = again or f"make one with `{cls.COMMAND}`"
            raise cls.ERROR(f"{file}: expected {cls.NOUN}, got: {read_failure(error)}; {advice}") from None
        return cls.from_json(text, source=str(file), again=again)

    def save(self, file: Path) -> None:
        """Write the file atomically."""
        write_atomically(file, (self.to_json() + "\n").encode())


class _Unfit(Exception):
    """A value does not fit its type. Each enclosing container adds the value's position to ``place``."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.place = ""


def read_record(kind: type[Kind], data: Any, where: str) -> Kind:
    """Make a dataclass from decoded JSON, checking each value against its declared type.

    Args:
        kind: the dataclass.
        data: the decoded JSON.
        where: how messages name the outermost value.

    Raises:
        TypeError: a value does not fit; the message says where it stands.
    """
    try:
        found: Kind = _reader(kind)(data)  # type: ignore[arg-type]
        return found
    except _Unfit as error:
        raise TypeError(f"{where}{error.place}: {error}") from None


@cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """Make the function that checks a decoded JSON value against a type and converts it; cached for each type."""
    origin = get_origin(hint)
    if hint is Any:
        return lambda value: value
    if origin is Annotated:
        return _bounded_reader(*get_args(hint))
    if origin in (Union, types.UnionType):
        inner = _reader(next(option for option in get_args(hint) if option is not type(None)))
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        return _tuple_reader(get_args(hint))
    if is_dataclass(hint):
        return _dataclass_reader(hint)
    if origin is dict and get_args(hint)[1] is not Any:
        return _table_reader(get_args(hint)[1])
    if hint is Path:
        text = _reader(str)
        return lambda value: Path(text(value))
    accepted = dict if origin in (dict, Mapping) else hint
    name = getattr(hint, "__name__", hint)

    def read(value: Any) -> Any:
        if hint is float:
            if value is None:  # JSON has no NaN
                return math.nan
            if isinstance(value, float) or _is_whole(value):
                return float(value)
        elif _is_whole(value) if hint is int else isinstance(value, accepted):
            return value
        raise _Unfit(f"expected {name}, got {_shown(value)}")

    return read


def _bounded_reader(kind: Any, rule: Rule) -> Callable[[Any], Any]:
    """Read a value of a type that must also keep a rule."""
    inner = _reader(kind)

    def read(value: Any) -> Any:
        found = inner(value)
        if not rule.holds(found):
            raise _Unfit(f"expected {rule.expected}, got {_shown(value)}")
        return found

    return read


def _tuple_reader(kinds: tuple[Any, ...]) -> Callable[[Any], Any]:
    """Read a tuple of any length, ``tuple[float, ...]``, or of a fixed one, ``tuple[float, float | None]``."""
    readers = [_reader(kind) for kind in kinds if kind is not Ellipsis]
    is_open = kinds[-1] is Ellipsis

    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise _Unfit(f"expected a list, got {_shown(value)}")
        if not is_open and len(value) != len(readers):
            raise _Unfit(f"expected a list of {len(readers)}, got {_shown(value)}")
        found: list[Any] = []
        try:
            for item, reader in zip(value, repeat(readers[0]) if is_open else readers, strict=False):
                found.append(reader(item))
        except _Unfit as error:
            error.place = f"[{len(found)}]{error.place}"
            raise
        return tuple(found)

    return read


def _table_reader(kind: Any) -> Callable[[Any], Any]:
    """Read an object of any names, whose values have one type."""
    reader = _reader(kind)

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Unfit(f"expected an object, got {_shown(value)}")
        found = {}
        for name, item in value.items():
            try:
                found[name] = reader(item)
            except _Unfit as error:
                error.place = f".{name}{error.place}"
                raise
        return found

    return read


def _dataclass_reader(kind: Any) -> Callable[[Any], Any]:
    """Read an object into a dataclass; unknown names are ignored, missing ones must have a default."""
    hints = get_type_hints(kind, include_extras=True)
    readers = {item.name: _reader(hints[item.name]) for item in fields(kind)}
    needed = {item.name for item in fields(kind) if item.default is MISSING and item.default_factory is MISSING}

    def read(data: Any) -> Any:
        if not isinstance(data, dict):
            raise _Unfit(f"expected an object, got {_shown(data)}")
        values = {}
        for name, value in data.items():
            if name in readers:
                try:
                    values[name] = readers[name](value)
                except _Unfit as error:
                    error.place = f".{name}{error.place}"
                    raise
        if not needed <= values.keys():
            missing = [name for name in readers if name in needed and name not in values]
            raise _Unfit(f"expected {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} missing")
        return kind(**values)

    return read


def _is_whole(value: Any) -> bool:
    """Tell whether a value is an integer of 64 bits; JSON allows 10^400, which overflows in later arithmetic."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _shown(value: Any) -> str:
    """Return a value's repr for a message, cut to 60 characters.

    >>> _shown("8"), _shown(10**400)
    ("'8'", '100000000000000000000000000000000000000000000000000000000...')
    """
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def demand(holds: bool, where: str, expected: str, got: object) -> None:
    """Raise ValueError, in a record's ``check``, unless a condition holds.

    >>> demand(0 > 1, "plan.rows[0].workers", "1 or more", 0)
    Traceback (most recent call last):
    ValueError: plan.rows[0].workers: expected 1 or more, got 0
    """
    if not holds:
        raise ValueError(f"{where}: expected {expected}, got {_shown(got)}")
