"""The choice between shared memory and Gloo, and the connection of a group through its store.

``RUEDA_TRANSPORT`` decides: ``gloo`` or ``shared``. By default, shared memory is used where all ranks of a group are on
one host and can open the segment that the first of them has created; where that fails, one line tells why, and Gloo is
used. Ranks on several hosts, the same number on each, use shared memory within the hosts if ``shared`` asks for it.
All ranks come to the same decision, which the first of them takes. A rank whose variable or processor forbids it says
so in the store, and the others need not wait for it.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from torch.distributed.distributed_c10d import PrefixStore, Store

from rueda.errors import WorldError
from rueda.world.shared_memory.fixed_buckets import FixedBuckets, needed_bytes
from rueda.world.shared_memory.group import HALVES, SharedGroup
from rueda.world.shared_memory.host_group import DEPTH, HostGroup
from rueda.world.shared_memory.links import connect_links
from rueda.world.shared_memory.operations import Place
from rueda.world.shared_memory.routes import HostPlace
from rueda.world.shared_memory.segment import Segment, create, open_segment, total_bytes
from rueda.world.shared_memory.waiting import ORDERED, Check

TRANSPORT = "RUEDA_TRANSPORT"
_CHUNK_BYTES, _HOST_CHUNK_BYTES = 1 << 21, 1 << 22  # at most, on one host and on several
_LEAST_CHUNK_BYTES = 1 << 16
_MOST_RANKS = 128
_MOST_HOSTS = 16
_NOBODY = -2  # in place of the descriptor of a first rank that does not take part
_DECLINED = "declined "  # begins what a rank that does not take part answers in place of its host

Made = TypeVar("Made")

_said: set[str] = set()


def wanted(environ: Mapping[str, str]) -> str:
    """Return ``gloo``, ``shared``, or nothing if shared memory is to be used where it is known to work.

    >>> wanted({}), wanted({"RUEDA_TRANSPORT": "gloo"})
    ('', 'gloo')
    >>> wanted({"RUEDA_TRANSPORT": "tcp"})
    Traceback (most recent call last):
    rueda.errors.WorldError: RUEDA_TRANSPORT: expected gloo or shared, got 'tcp'; correct or unset it
    """
    found = environ.get(TRANSPORT, "").lower()
    if found not in ("", "gloo", "shared"):
        raise WorldError(TRANSPORT, expected="gloo or shared", got=environ[TRANSPORT], do="correct or unset it")
    return found


def is_tried(environ: Mapping[str, str], size: int) -> bool:
    """Return whether a group of ``size`` ranks should try shared memory."""
    choice = wanted(environ)
    possible = 1 < size <= _MOST_RANKS and sys.platform == "linux"
    return possible and choice != "gloo" and (ORDERED or choice == "shared")


def _why_declined(environ: Mapping[str, str], rank: int) -> str:
    """Return why a rank does not take part, for the others: their variables or processors may differ.

    >>> _why_declined({"RUEDA_TRANSPORT": "gloo"}, 3)
    'rank 3 of the group does not take part: RUEDA_TRANSPORT=gloo'
    """
    why = "RUEDA_TRANSPORT=gloo" if wanted(environ) == "gloo" else f"{sys.platform}, {platform.machine()}"
    return f"rank {rank} of the group does not take part: {why}"


def connect_group(
    store: Store, rank: int, size: int, timeout: timedelta, check: Check = lambda: None
) -> SharedGroup | HostGroup | None:
    """Connect the ranks of a group, or return None on all of them if it is not possible.

    Args:
        store: a store that is used for nothing else, the same for all ranks.
        rank: the rank of this worker in the group.
        size: the number of ranks.
        timeout: how long to wait for the others.
        check: see :class:`ReducingGroup`.
    """
    if not is_tried(os.environ, size):
        if size > 1:
            _decline_hosts(store, rank)
        return None
    hosts = find_hosts(store, rank, size, timeout)
    if not hosts:
        return None
    if len(hosts) > 1:
        return _connect_hosts(store, rank, size, hosts, timeout, check)
    chunk_bytes = _chunk_bytes(size, HALVES, _CHUNK_BYTES)
    segment = connect_segment(store, rank, size, HALVES * chunk_bytes * size, timeout)
    return None if segment is None else SharedGroup(segment, chunk_bytes, check)


def find_hosts(store: Store, rank: int, size: int, timeout: timedelta) -> list[list[int]]:
    """Return the ranks of each host, in the order of the hosts' first ranks; none if a rank does not take part."""
    store.set(f"host/{rank}", _host())
    if rank == 0:
        keys = [f"host/{other}" for other in range(size)]
        store.wait(keys, timeout)
        answers = [store.get(key).decode(errors="replace") for key in keys]
        declined = [answer for answer in answers if answer.startswith(_DECLINED)]
        if declined:
            _say(declined[0].removeprefix(_DECLINED))
        found: dict[str, list[int]] = {}
        for other, answer in enumerate(answers):
            found.setdefault(answer, []).append(other)
        store.set("hosts", json.dumps([] if declined else list(found.values())))
    store.wait(["hosts"], timeout)
    content = store.get("hosts")
    try:
        hosts: list[list[int]] | str = json.loads(content)
    except ValueError:
        raise _foreign("hosts", "lists of ranks", content) from None
    if isinstance(hosts, str):
        _say_once(store, hosts)
        return []
    return hosts


def _decline_hosts(store: Store, rank: int) -> None:
    """Tell ranks that may be in :func:`find_hosts` that this one does not take part."""
    why = _why_declined(os.environ, rank)
    store.set(f"host/{rank}", _DECLINED + why)
    if rank == 0:
        store.set("hosts", json.dumps(why))


def _connect_hosts(
    store: Store, rank: int, size: int, hosts: list[list[int]], timeout: timedelta, check: Check
) -> HostGroup | None:
    """Connect the ranks of several hosts: a segment on each of them, and links between those of the same number."""
    if why := why_not(hosts, wanted(os.environ)):
        if rank == 0 and wanted(os.environ) == "shared":
            _say(why)
        return None
    host = next(number for number, ranks in enumerate(hosts) if rank in ranks)
    ranks = hosts[host]
    local_rank, local_size = ranks.index(rank), len(ranks)
    chunk_bytes = _chunk_bytes(local_size, DEPTH, _HOST_CHUNK_BYTES)
    within = PrefixStore(f"within/{host}", store)
    segment = connect_segment(within, local_rank, local_size, DEPTH * chunk_bytes * local_size, timeout)
    links, why = None, "none"
    if segment is not None:
        between = PrefixStore(f"between/{local_rank}", store)
        peers = [ranks[local_rank] for ranks in hosts]
        links, why = _attempt(lambda: connect_links(between, host, peers, timeout))
    store.set(f"linked/{rank}", why or "yes")
    if rank == 0:
        keys = [f"linked/{other}" for other in range(size)]
        store.wait(keys, timeout)
        refused = _refusals(store, keys)
        store.set("linked", "no" if refused else "yes")
        if spoken := [found for found in refused if found != "none"]:
            _say(spoken[0])
    store.wait(["linked"], timeout)
    agreed = _is_yes(store, "linked")
    if segment is None or links is None or not agreed:
        if links is not None:
            links.close()
        if segment is not None:
            segment.close()
        return None
    place = HostPlace(host, len(hosts))
    return HostGroup(segment, links, Place(rank, size), ranks, place, chunk_bytes, check)


def why_not(hosts: Sequence[Sequence[int]], choice: str) -> str:
    """Return why ranks on several hosts use Gloo; nothing if they do not.

    >>> why_not([[0, 1], [2, 3]], "shared"), why_not([[0, 1], [2]], "shared")
    ('', 'expected the same number of ranks on each host, got 2, 1')
    """
    numbers = [len(ranks) for ranks in hosts]
    if len(set(numbers)) > 1:
        return f"expected the same number of ranks on each host, got {', '.join(map(str, numbers))}"
    if choice != "shared":
        return "several hosts use it only where it is asked for"
    if len(hosts) > _MOST_HOSTS:
        return f"expected at most {_MOST_HOSTS} hosts, got {len(hosts)}"
    return ""


def _chunk_bytes(size: int, depth: int, most: int) -> int:
    """Return the bytes of a chunk: many ranks have small ones, so that a segment has about 16 of the largest."""
    return max(_LEAST_CHUNK_BYTES, min(most, 16 * most // (depth * size)) // 64 * 64)


def connect_buckets(
    store: Store, rank: int, size: int, bucket_bytes: Sequence[int], timeout: timedelta, check: Check = lambda: None
) -> FixedBuckets | None:
    """Connect the ranks for buckets of these sizes; otherwise as :func:`connect_group`."""
    if not is_tried(os.environ, size):
        if size > 1:
            _decline_segment(store, rank)
        return None
    segment = connect_segment(store, rank, size, needed_bytes(bucket_bytes, size), timeout)
    return None if segment is None else FixedBuckets(segment, bucket_bytes, check)


def connect_segment(store: Store, rank: int, size: int, num_bytes: int, timeout: timedelta) -> Segment | None:
    """Let the first rank create a segment and all others open it; return None on all ranks if one of them cannot."""
    answers = [f"opened/{other}" for other in range(1, size)]
    if rank == 0:
        segment, why = _attempt(lambda: Segment(create(size, num_bytes), 0, size, num_bytes))
        descriptor = -1 if segment is None else segment.descriptor
        nonce = "" if segment is None else segment.nonce
        store.set("segment", json.dumps([_host(), os.getpid(), descriptor, nonce, why]))
        store.wait(answers, timeout)
        refused = _refusals(store, answers)
        agreed = segment is not None and not refused
        store.set("agreed", "yes" if agreed else "no")
        if not agreed and "other host" not in refused:
            _say(why or refused[0])
    else:
        store.wait(["segment"], timeout)
        content = store.get("segment")
        try:
            host, process, descriptor, nonce, refusal = json.loads(content)
        except ValueError:
            host, process, descriptor, nonce, refusal = None, 0, -1, "", ""
        segment, why = None, "none"
        if host is None:
            why = str(_foreign("segment", "a segment", content))
        elif host != _host():
            why = "other host"
        elif nonce:
            segment, why = _attempt(lambda: _opened(process, descriptor, nonce, rank, size, num_bytes))
        store.set(answers[rank - 1], why or "yes")
        store.wait(["agreed"], timeout)
        agreed = _is_yes(store, "agreed")
        if descriptor == _NOBODY:
            _say_once(store, refusal)
    if segment is not None and not agreed:
        segment.close()
    return segment if agreed else None


def _decline_segment(store: Store, rank: int) -> None:
    """Tell ranks that may be in :func:`connect_segment` that this one does not take part."""
    why = _why_declined(os.environ, rank)
    if rank == 0:
        store.set("segment", json.dumps([_host(), os.getpid(), _NOBODY, "", why]))
        store.set("agreed", "no")
    else:
        store.set(f"opened/{rank}", why)


def _refusals(store: Store, keys: Sequence[str]) -> list[str]:
    """Return what the ranks have answered, without those that answered ``yes``."""
    answers = [store.get(key).decode(errors="replace") for key in keys]
    return [answer for answer in answers if answer != "yes"]


def _is_yes(store: Store, key: str) -> bool:
    """Return whether the first rank has decided for shared memory.

    Raises:
        WorldError: the key holds neither answer, so another program has written it.
    """
    content = store.get(key)
    if content not in (b"yes", b"no"):
        raise _foreign(key, "yes or no", content)
    return content == b"yes"


def _foreign(key: str, expected: str, content: bytes) -> WorldError:
    """Return the error for a key that no worker of this job has written."""
    return WorldError(
        f"the store of this job, key {key}", expected=expected, got=content[:40],
        do="look for another program that uses the same store, and start the job again",
    )  # fmt: skip


def _opened(process: int, descriptor: int, nonce: str, rank: int, size: int, num_bytes: int) -> Segment:
    return Segment(open_segment(process, descriptor, nonce, total_bytes(size, num_bytes)), rank, size, num_bytes)


def _attempt(make: Callable[[], Made]) -> tuple[Made | None, str]:
    try:
        return make(), ""
    except (OSError, ValueError, RuntimeError) as error:
        return None, f"{type(error).__name__}: {error}"


def _host() -> str:
    """Return what identifies this host: the number of its last boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _say_once(store: Store, why: str) -> None:
    """Say it on the first of several ranks that know it, where the first rank of the group does not take part."""
    if store.add("said", 1) == 1:
        _say(why)


def _say(why: str) -> None:
    """Say why Gloo is used, once in a process: a program has several groups."""
    if why in _said:
        return
    _said.add(why)
    sys.stderr.write(f"rueda: CPU tensors go through Gloo instead of shared memory ({why})\n")
    sys.stderr.flush()
