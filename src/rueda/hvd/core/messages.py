"""The messages between a rank and the coordinator on rank 0.

=======================  ======================================================================================
a rank sends             the coordinator answers
=======================  ======================================================================================
:class:`Define`          nothing: later requests refer to the signature by its number
:class:`Request`         :class:`Run` to all ranks of the process set once all have requested the collective,
                         or :class:`Refuse`
:class:`Repeat`          :class:`RunRepeated`, once all ranks have asked for the same repetitions, whose numbers
                         :class:`Number` introduced when these collectives ran for the second time
:class:`Request`, before   :class:`Replay`, if the others wait in ``elastic.run``
``elastic.run``
:class:`Withdraw`        nothing
:class:`Leave`           :class:`AllLeft` once all ranks have left
:class:`Abort`           :class:`Abort` to all ranks: every collective fails
=======================  ======================================================================================

Messages are sent in batches. :func:`encode` and :func:`decode` convert a batch to plain values and back, because
``marshal``, which serialises them (:mod:`rueda.hvd.core.channel`), supports no classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

Payloads: TypeAlias = list[bytes | None] | None  # one for each rank of the set; None: a process group sends the data
Fields: TypeAlias = tuple[Any, ...]  # of a Signature


class Define(NamedTuple):
    """This rank's later requests refer to the signature with these fields by ``number``."""

    number: int
    signature: Fields


class Request(NamedTuple):
    """This rank is ready to run a collective; ``signature`` is a number that a :class:`Define` introduced.

    ``extra`` holds what may differ between ranks, such as the number of rows of an all-gather; ``payload`` holds the
    bytes of the tensors if they are few; ``blocks`` is True if a thread waits until it has run.
    """

    process_set: int
    name: str
    signature: int
    extra: Any
    payload: bytes | None
    blocks: bool = False


class Repeat(NamedTuple):
    """This rank is ready to run collectives that have numbers: bit *i* of ``bits`` stands for number *i*."""

    process_set: int
    bits: int


class Withdraw(NamedTuple):
    """This rank withdraws a request."""

    process_set: int
    kind: int
    name: str


class Leave(NamedTuple):
    """This rank is shutting down."""


class Run(NamedTuple):
    """All ranks of the process set run these collectives, which have one kind, now and in this order.

    ``extras`` and ``payloads`` have one item for each name: what the ranks sent with their requests, in rank order.
    ``absent`` holds the signatures, by name, of the collectives to which a joined rank contributes zeros.
    """

    kind: int
    process_set: int
    names: list[str]
    extras: list[Any]
    payloads: list[Payloads]
    absent: dict[str, Fields]


class Number(NamedTuple):
    """Collectives of a process set, each a name and the fields of its signature, get the numbers from ``first`` on."""

    process_set: int
    first: int
    rows: list[tuple[str, Fields]]


class RunRepeated(NamedTuple):
    """All ranks of the process set run the collectives with these numbers now, in the order of the numbers."""

    process_set: int
    bits: int


class Refuse(NamedTuple):
    """A collective cannot run and fails on all ranks that requested it.

    ``mismatch`` is True if the reason is that the signatures of the ranks differ.
    """

    process_set: int
    kind: int
    name: str
    mismatch: bool
    text: str


class Replay(NamedTuple):
    """A collective, which this rank called in its prelude, returns what it once returned to the other ranks.

    ``types``, ``shapes`` and ``contents`` are those of :class:`rueda.hvd.core.prelude.Kept`.
    """

    process_set: int
    kind: int
    name: str
    types: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    contents: tuple[bytes, ...]


class AllLeft(NamedTuple):
    """All ranks have said that they are shutting down."""


class Abort(NamedTuple):
    """All collectives fail, now and later; ``stalled`` is True if the reason is a collective that waited too long."""

    text: str
    stalled: bool


Message: TypeAlias = (
    Define | Request | Withdraw | Leave | Run | Refuse | AllLeft | Abort | Repeat | Number | RunRepeated | Replay
)
_TYPES: tuple[type[Message], ...] = (
    Define, Request, Withdraw, Leave, Run, Refuse, AllLeft, Abort, Repeat, Number, RunRepeated, Replay,
)  # fmt: skip
_CODES: dict[type[Message], int] = {kind: code for code, kind in enumerate(_TYPES)}
# tuple.__new__ takes half the time of a named tuple's own constructor.
_READ: list[Callable[[Any], Message]] = [partial(tuple.__new__, kind) for kind in _TYPES]
_plain: Callable[[Any], tuple[Any, ...]] = itemgetter(slice(None))  # a slice of a named tuple is a plain tuple
make_request: Callable[[tuple[int, str, int, Any, bytes | None, bool]], Request] = partial(tuple.__new__, Request)


def encode(messages: Sequence[Message]) -> list[tuple[int, list[Any]]]:
    """Convert messages to plain values: for each run of messages of one type its code and their fields.

    >>> encode([Withdraw(0, 9, "x"), Withdraw(0, 9, "y"), Abort("late", True)])
    [(2, [(0, 9, 'x'), (0, 9, 'y')]), (7, [('late', True)])]
    """
    if len(messages) == 1:  # latency of a single small collective: a shorter path
        (only,) = messages
        return [(_CODES[type(only)], [_plain(only)])]
    return [(_CODES[kind], list(map(_plain, same))) for kind, same in groupby(messages, type)]


def decode(plain: Iterable[tuple[int, list[Any]]]) -> list[Message]:
    """Convert what :func:`encode` returned back to messages.

    >>> decode([(2, [(0, 9, 'x')]), (7, [('late', True)])])
    [Withdraw(process_set=0, kind=9, name='x'), Abort(text='late', stalled=True)]
    """
    return [message for code, rows in plain for message in map(_READ[code], rows)]
