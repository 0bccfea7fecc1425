"""Records that stand in one JSON file: written whole, read strictly, refused in one line.

A record is a frozen dataclass below :class:`JsonRecord`. Its fields' types are what a file must hold: each value is
checked against them, however deep, and unknown names are passed over, so that an older Rueda reads a newer file of the
same format.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from rueda.errors import RuedaError, RunError
from rueda.files.atomic import plain, write_atomically

FORMAT = 1

Kind = TypeVar("Kind")
Own = TypeVar("Own", bound="JsonRecord")


class JsonRecord:
    """What all of them share; a subclass says its file, its noun, its command, and its error if it is another."""

    FILE: ClassVar[str]
    """its name in a folder"""
    NOUN: ClassVar[str]
    """what it is: ``a profile``"""
    COMMAND: ClassVar[str]
    """what makes one: ``rueda measure``"""
    ERROR: ClassVar[type[RuedaError]] = RunError
    INDENT: ClassVar[int | None] = 1

    def check(self) -> None:
        """Refuse, by ValueError, what fits its types and would fail later, far from the file."""

    def contents(self) -> dict[str, Any]:
        """Give what the file holds: the fields; a subclass adds what follows from them, for other programs."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]

    def to_json(self) -> str:
        """Write strict JSON: NaN and infinity become null."""
        return json.dumps(plain(self.contents()), indent=self.INDENT, allow_nan=False)

    @classmethod
    def from_json(cls: type[Own], text: str, *, source: str | None = None, again: str | None = None) -> Own:
        """Read it back.

        Args:
            text: of the file.
            source: its name, for messages.
            again: what to do about a damaged one, if it is not to call the command that makes it.

        Raises:
            RuedaError: of the record's own kind, in one line: no JSON, another file, another format, a wrong value.
        """
        source, again = source or cls.FILE, again or f"make it again with `{cls.COMMAND}`"
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise cls.ERROR(f"{source}: expected JSON, got: {error}; {again}") from None
        own = {item.name: item for item in fields(cls)}  # type: ignore[arg-type]
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
        """Read a file, or the one of a folder; ``again`` as in :meth:`from_json`."""
        file = Path(file) / cls.FILE if Path(file).is_dir() else Path(file)
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            advice = again or f"make one with `{cls.COMMAND}`"
            raise cls.ERROR(f"{file}: expected {cls.NOUN}, got: {error}; {advice}") from None
        return cls.from_json(text, source=str(file), again=again)

    def save(self, file: Path) -> None:
        """Write the file, whole or not at all."""
        write_atomically(file, (self.to_json() + "\n").encode())


class _Unfit(Exception):
    """A value that is not what its type says; each container on the way out adds where in it the value stands."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.place = ""


def read_record(kind: type[Kind], data: Any, where: str) -> Kind:
    """Make a dataclass from JSON, each value checked against its declared type."""
    try:
        found: Kind = _reader(kind)(data)  # type: ignore[arg-type]
        return found
    except _Unfit as error:
        raise TypeError(f"{where}{error.place}: {error}") from None


@cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """Make the function that checks a value of JSON against a type and converts it; made once a type."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        inner = _reader(next(option for option in get_args(hint) if option is not type(None)))
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        return _tuple_reader(get_args(hint))
    if is_dataclass(hint):
        return _dataclass_reader(hint)
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


def _tuple_reader(kinds: tuple[Any, ...]) -> Callable[[Any], Any]:
    """Read ``tuple[float, ...]``, or one of a fixed length such as ``tuple[float, float | None]``."""
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


def _dataclass_reader(kind: Any) -> Callable[[Any], Any]:
    """Read an object into a dataclass; unknown names are passed over, missing ones must have a default."""
    hints = get_type_hints(kind)
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
    """Tell a whole number of 64 bits: JSON allows 10^400, and arithmetic with it ends in an OverflowError somewhere."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _shown(value: Any) -> str:
    """Write a value for a message, which is one line and no page.

    >>> _shown("8"), _shown(10**400)
    ("'8'", '100000000000000000000000000000000000000000000000000000000...')
    """
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def demand(holds: bool, where: str, expected: str, got: object) -> None:
    """Refuse a value in a record's ``check``.

    >>> demand(0 > 1, "plan.rows[0].workers", "1 or more", 0)
    Traceback (most recent call last):
    ValueError: plan.rows[0].workers: expected 1 or more, got 0
    """
    if not holds:
        raise ValueError(f"{where}: expected {expected}, got {_shown(got)}")


def demand_numbers(record: object, where: str, *, above: Iterable[str] = (), from_zero: Iterable[str] = ()) -> None:
    """Refuse fields that are not finite, or not positive; None, where a field allows it, was not measured.

    Args:
        record: any dataclass.
        where: its place in the file, for the message.
        above: fields that must be more than 0.
        from_zero: fields that must be 0 or more.
    """
    for name in (*above, *from_zero):
        value = getattr(record, name)
        least = "more than 0" if name in above else "0 or more"
        holds = value is None or (math.isfinite(value) and (value > 0 if name in above else value >= 0))
        demand(holds, f"{where}.{name}", f"a number, {least}", value)
