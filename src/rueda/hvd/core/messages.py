"""What a rank and the coordinator say to each other.

=======================  ======================================================================================
a rank sends             the coordinator answers
=======================  ======================================================================================
:class:`Define`          nothing: later requests carry the number of the signature only
:class:`Request`         :class:`Run` to all ranks of the process set once all have requested it, or
                         :class:`Refuse`
:class:`Withdraw`        nothing
:class:`Join`            :class:`Joined` when all ranks have joined
:class:`Leave`           :class:`AllLeft` when all ranks have left
..                       :class:`Abort` at any time: all that is in flight fails
=======================  ======================================================================================

Messages travel in lists; :func:`encode` and :func:`decode` turn them into plain values and back, since ``marshal``,
which writes them (:mod:`rueda.hvd.core.star`), knows no classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from rueda.hvd.core.entries import Signature

Payloads: TypeAlias = list[bytes | None] | None  # of each rank in order; None: they travel by a process group


class Define(NamedTuple):
    """From now on this rank says ``number`` where it means ``signature``."""

    number: int
    signature: Signature


class Request(NamedTuple):
    """This rank is ready to run a collective; ``signature`` is the number of one that it has defined.

    ``extra`` is what may differ between the ranks, such as how many rows each gathers; ``payload`` are the tensors
    themselves, where they are small.
    """

    process_set: int
    name: str
    signature: int
    extra: Any
    payload: bytes | None


class Withdraw(NamedTuple):
    """This rank takes a request back."""

    process_set: int
    name: str


class Join(NamedTuple):
    """This rank has no more data: it contributes zeros until all ranks have joined."""


class Leave(NamedTuple):
    """This rank shuts down."""


class Run(NamedTuple):
    """All ranks run these collectives of one kind and process set now, in this order.

    ``extras`` and ``payloads`` have one item for each name: what all ranks have sent, in the order of the set's ranks.
    ``absent`` has the signatures of those to which a joined rank contributes zeros, by name.
    """

    kind: int
    process_set: int
    names: list[str]
    extras: list[Any]
    payloads: list[Payloads]
    absent: dict[str, Signature]


class Refuse(NamedTuple):
    """A collective cannot run, and fails on all ranks that requested it; without a name it is the join.

    ``mismatch``: because the ranks' signatures differ.
    """

    process_set: int
    name: str
    mismatch: bool
    text: str


class Joined(NamedTuple):
    """All ranks have joined, ``last_rank`` as the last."""

    last_rank: int


class AllLeft(NamedTuple):
    """All ranks shut down."""


class Abort(NamedTuple):
    """All collectives fail, those that are in flight and those to come; ``stalled``: since one waited too long."""

    text: str
    stalled: bool


Message: TypeAlias = Define | Request | Withdraw | Join | Leave | Run | Refuse | Joined | AllLeft | Abort
_TYPES: tuple[type[Message], ...] = (Define, Request, Withdraw, Join, Leave, Run, Refuse, Joined, AllLeft, Abort)
_CODES: dict[type[Message], int] = {kind: code for code, kind in enumerate(_TYPES)}


def encode(messages: Sequence[Message]) -> list[tuple[int, list[Any]]]:
    """Write messages as plain values: for each that follow each other and are of one type, its code and their fields.

    >>> encode([Withdraw(0, "x"), Withdraw(0, "y"), Joined(3)])
    [(2, [(0, 'x'), (0, 'y')]), (7, [(3,)])]
    """
    if len(messages) == 1:  # one small collective at a time: every microsecond shows
        (only,) = messages
        return [(_CODES[type(only)], [_WRITE.get(type(only), _plain)(only)])]
    return [(_CODES[kind], list(map(_WRITE.get(kind, _plain), same))) for kind, same in groupby(messages, type)]


def decode(plain: Iterable[tuple[int, list[Any]]]) -> list[Message]:
    """Read what :func:`encode` wrote.

    >>> decode([(2, [(0, 'x'), (0, 'y')]), (7, [(3,)])])
    [Withdraw(process_set=0, name='x'), Withdraw(process_set=0, name='y'), Joined(last_rank=3)]
    """
    return [message for code, rows in plain for message in map(_READ[code], rows)]


def _write_define(message: Define) -> tuple[Any, ...]:
    return message.number, _plain(message.signature)


def _write_run(message: Run) -> tuple[Any, ...]:
    if not message.absent:
        return _plain(message)
    *others, absent = message
    return (*others, {name: _plain(absent[name]) for name in absent})


def _read_define(fields: tuple[int, tuple[Any, ...]]) -> Define:
    number, signature = fields
    return Define(number, Signature._make(signature))


def _read_run(fields: tuple[Any, ...]) -> Run:
    message = _run(fields)
    if message.absent:
        for name, signature in message.absent.items():
            message.absent[name] = Signature._make(signature)
    return message


_plain: Callable[[Any], tuple[Any, ...]] = itemgetter(slice(None))  # a slice of a named tuple is a plain one
_WRITE: dict[type[Message], Callable[[Any], tuple[Any, ...]]] = {Define: _write_define, Run: _write_run}
_READERS: dict[type[Message], Callable[[Any], Message]] = {Define: _read_define, Run: _read_run}
# By the constructor of tuples itself, which takes half the time of a named tuple's own.
_READ = [_READERS.get(kind) or partial(tuple.__new__, kind) for kind in _TYPES]
_run: Callable[[tuple[Any, ...]], Run] = partial(tuple.__new__, Run)
request: Callable[[tuple[int, str, int, Any, bytes | None]], Request] = partial(tuple.__new__, Request)
