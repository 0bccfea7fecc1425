"""All-reduces among the ranks of several hosts: shared memory within a host, sockets between the hosts.

With L ranks on each of H hosts, a chunk of S bytes goes through these stages:

1. *fill*: each rank copies its chunk into its slot.
2. *combine*: each rank reduces its part of the chunk, S / L bytes, over the slots of its host, and sends the partial
   result to its *peers*, the ranks of the same number on the other hosts.
3. *sum*: it reduces its own partial result and those that came, in the order of the hosts, into the first slot.
4. *drain*: when all ranks of the host have done so, each copies the whole chunk out of the first slot.

No rank is a bottleneck, since all of them send at once, and a host sends each byte of the result 2 (H - 1) / H times,
which is the least that is possible, instead of up to twice as often for every one of its ranks. How a part travels is
decided by its size and the number of hosts alone, so by all ranks alike:

==============================  ==================================================================================
*whole*: two hosts, or a part   each rank sends its whole part to all peers: one message's time, (H - 1) S bytes
of at most ``WHOLE_BYTES``
*in shares*: otherwise          each rank sends every peer that one's share of the part, 1 / H; when it has reduced
                                its own share, it sends the result to all peers: two messages' time,
                                2 (H - 1) / H S bytes
==============================  ==================================================================================

Small chunks have fewer parts than there are ranks, at least ``PART_BYTES`` each, since a message costs more than to
wait for another rank of the host.

A slot holds ``DEPTH`` chunks, so that one chunk travels between the hosts while another is filled and a third is
drained. A stage is done as soon as what it needs is there, whichever chunk that is of; otherwise this rank waits for
its sockets and for the counters of its host at once.

An operation that is begun ahead of time is run by a thread in the background: the backward pass goes on while gradients
travel, as it does with Gloo. One that is finished at once is run by the caller itself, which saves waking the thread.

Every element is the sum over the hosts, in their order, of the sums over the ranks of a host, in their order: the same
bits on all ranks and in every run. float16 and bfloat16 are rounded once for each host, and once for the whole.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence

import torch

from rueda.world.shared_memory.links import Header, Links
from rueda.world.shared_memory.operations import Operation, Place, Reduction
from rueda.world.shared_memory.reducing_group import ReducingGroup, not_the_same
from rueda.world.shared_memory.routes import PARTIAL, RESULT, HostPlace, Part, PartialMemory, Route
from rueda.world.shared_memory.segment import COMBINED, DONE, POSTED, Segment
from rueda.world.shared_memory.waiting import Check
from rueda.world.shared_memory.wakeups import Wakeups

DEPTH = 3
_REST_SECONDS = 0.01
_MOST_ROUTES = 64  # that are kept


class _Travel:
    """A chunk on its way through the stages."""

    def __init__(self, own: PartialMemory) -> None:
        self.own = own
        self.operation: Reduction
        self.route: Route
        self.num_unsent = 0  # messages
        self.num_partials = 0  # that are still to come
        self.num_results = 0


class HostGroup(ReducingGroup):
    """All-reduces among ranks on several hosts, the same number on each.

    Args:
        segment: the segment of the ranks on this host, with ``DEPTH * chunk_bytes`` for each of them.
        links: the connections with the peers.
        place: the place of this rank among all ranks of the group.
        ranks: the ranks of this host.
        hosts: the place of this host.
        chunk_bytes: see :class:`ReducingGroup`.
        check: see :class:`ReducingGroup`.
        seconds: see :class:`ReducingGroup`.
    """

    transport = "shared memory within hosts"

    def __init__(
        self, segment: Segment, links: Links, place: Place, ranks: Sequence[int], hosts: HostPlace, chunk_bytes: int,
        check: Check = lambda: None, seconds: float = math.inf,
    ) -> None:  # fmt: skip
        super().__init__(segment, chunk_bytes, DEPTH, place, ranks, check, seconds)
        self._links = links
        self._wakeups = Wakeups(segment)
        self._hosts = hosts
        self._travels = [_Travel(PartialMemory(chunk_bytes, segment.size, hosts.num_hosts)) for _ in range(DEPTH)]
        self._routes: dict[tuple[int, torch.dtype, int], Route] = {}  # by number of the travel, dtype and elements
        self._num_combined = 0  # chunks whose part this rank has sent, and so on
        self._num_summed = 0
        self._num_shared = 0
        self._queue_lock = threading.Lock()
        self._finished = threading.Condition()
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    def shutdown(self) -> None:
        """Leave the group: the others, on all hosts, get an error where they wait for this rank."""
        self._closed = True
        super().shutdown()
        self._links.close()
        self._wakeups.wake_others()
        self._woken.set()

    # Who runs the operations: their caller, or the thread in the background.

    def _begin(self, operation: Operation, *, ahead: bool = False) -> Operation:
        operation.combines = True
        with self._queue_lock:
            self._append(operation)
        if ahead:
            self._wake()
        return operation

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_in_background, name="rueda between hosts", daemon=True)
            self._thread.start()
        self._woken.set()

    def _run_in_background(self) -> None:
        with torch.inference_mode():  # tensors of a caller in this mode cannot be written otherwise
            while True:
                self._woken.wait()
                self._woken.clear()
                if self._closed:
                    return
                with self._lock:
                    if self._error is None:
                        self._run(None)

    def _finish(self, operation: Operation, seconds: float = math.inf) -> bool:
        end = operation.first + operation.num_chunks
        deadline = time.monotonic() + seconds if seconds < math.inf else seconds
        while self._num_done < end:
            if seconds == math.inf and self._lock.acquire(blocking=False):
                try:
                    if self._num_done < end:
                        self._raise_error()
                        self._run(end)
                        self._raise_error()
                finally:
                    self._lock.release()
            else:
                self._wake()  # the thread that runs may be about to stop
                with self._finished:
                    if self._num_done < end and self._error is None:
                        self._finished.wait(min(1.0, max(0.0, deadline - time.monotonic())))
                if self._num_done < end:
                    self._raise_error()
                    if time.monotonic() >= deadline:
                        return False
        return True

    def _raise_error(self) -> None:
        error = self._error
        if error is not None:
            raise type(error)(*error.args) if isinstance(error, RuntimeError) else error

    def _run(self, end: int | None) -> None:
        """Complete the chunks before ``end``, or all that are begun; keep an error, after which the group is closed."""
        try:
            while self._num_done < (self._num_begun if end is None else end):
                if not self._advance():
                    self._counters.wait_until(self._advance, self._awaited, self._rest)
        except BaseException as error:  # this rank is not in step with the others any more
            self._error = error
            self.shutdown()  # the others need not wait for it
            if not isinstance(error, Exception):
                raise
        finally:
            with self._finished:
                self._finished.notify_all()

    # The stages of a chunk.

    def _advance(self) -> bool:
        """Do the stages that are possible, each for one chunk, and return whether there was one.

        The last stages are first: that keeps the chunks under way few, and in the cache, unless another rank is late.
        """
        links, counters = self._links, self._counters
        if links.active:
            links.progress(self)
        before = self._num_done, self._num_shared, self._num_summed, self._num_combined, self._num_posted
        if self._num_summed < self._num_combined and not self._travel(self._num_summed).num_partials:
            self._sum(self._num_summed)
        if self._num_shared < self._num_summed and not self._travel(self._num_shared).num_results:
            self._num_shared += 1
            self._tell(COMBINED, self._num_shared)
        if self._may_drain() and counters.reached(COMBINED, self._num_done + 1):
            self._drain(self._num_done)
        if self._num_combined < self._num_posted and counters.reached(POSTED, self._num_combined + 1):
            self._combine(self._num_combined)
        if self._may_fill() and counters.reached(DONE, self._num_posted - DEPTH + 1):
            self._post(self._num_posted)
        return before != (self._num_done, self._num_shared, self._num_summed, self._num_combined, self._num_posted)

    def _tell(self, kind: int, value: int) -> None:
        """Set a counter of this rank, and wake the ranks of this host that may wait for it."""
        self._counters.set(kind, value)
        self._wakeups.wake_others()

    def _may_fill(self) -> bool:
        return self._num_posted < self._num_begun and self._num_posted < self._num_done + DEPTH

    def _may_drain(self) -> bool:
        return self._num_done < self._num_shared and not self._travel(self._num_done).num_unsent

    def _travel(self, number: int) -> _Travel:
        return self._travels[number % DEPTH]

    def _post(self, number: int) -> None:
        operation = self._operation_of(number)
        assert isinstance(operation, Reduction)
        start, end = operation.span(number - operation.first)
        travel = self._travel(number)
        travel.operation = operation
        travel.route = self._route(number % DEPTH, operation.dtype, end - start)
        self._fill(operation, number, (travel.route.low, travel.route.high))
        self._num_posted = number + 1
        self._tell(POSTED, number + 1)

    def _route(self, turn: int, dtype: torch.dtype, num_elements: int) -> Route:
        """Return how a chunk of some elements travels; those of one size in the same slots travel alike."""
        key = (turn, dtype, num_elements)
        found = self._routes.get(key)
        if found is None:
            if len(self._routes) >= _MOST_ROUTES:
                self._routes.clear()
            part = Part.of(num_elements, dtype.itemsize, self._place, self._hosts.num_hosts)
            start = turn * self._chunk_bytes
            first = self._segment.data[start : start + self._chunk_bytes]
            slots, own = self._slots_of(dtype, turn), self._travels[turn].own
            found = self._routes[key] = Route(part, self._hosts, slots, first, own)
        return found

    def _combine(self, number: int) -> None:
        """Reduce this rank's part over its host, and send the partial result to the peers."""
        travel = self._travel(number)
        operation, route, links = travel.operation, travel.route, self._links
        self._check_same(operation, number)
        if route.high > route.low:
            parts = list(route.slots)
            own = operation.own_part(number - operation.first, route.low, route.high)
            if own is not None:
                parts[self._place.rank] = own
            operation.reduce_some(route.partial, parts)
            travel.num_partials, travel.num_results = len(route.received_partials), len(route.received_results)
            links.expect(route.received_partials)
            links.expect(route.received_results)
            self._send(PARTIAL, number, route.sent_partials)
        self._num_combined = number + 1
        links.resume()
        links.progress(self)

    def _sum(self, number: int) -> None:
        """Reduce the partial results of all hosts into the first slot; send the result, if it is a share."""
        travel = self._travel(number)
        route = travel.route
        if route.total.numel():
            travel.operation.reduce_whole(route.total, route.partials)
            if route.sent_results:
                self._send(RESULT, number, route.sent_results)
                self._links.progress(self)
        self._num_summed = number + 1

    def _drain(self, number: int) -> None:
        operation = self._operations[0]
        index = number - operation.first
        operation.drain(index, self._slots_of(operation.dtype, number))
        last = index + 1 == operation.num_chunks
        if last:
            with self._queue_lock:
                self._operations.popleft()
        self._num_done = number + 1
        self._tell(DONE, number + 1)
        if last:
            with self._finished:
                self._finished.notify_all()

    # Messages between the hosts.

    def _send(self, kind: int, number: int, messages: Sequence[tuple[int, memoryview]]) -> None:
        travel = self._travel(number)
        travel.num_unsent += len(messages)
        header = Header(travel.operation.what, 2 * number + kind)
        for peer, data in messages:
            self._links.send(peer, header, data)

    def destination(self, host: int, header: Header) -> memoryview | None:
        """Return where a message goes; None if this rank has not come to its chunk yet (see :class:`Mailbox`)."""
        number, kind = divmod(header.tag, 2)
        if number >= self._num_combined:
            return None
        travel = self._travel(number)
        if header.what != travel.operation.what:
            raise not_the_same(travel.operation, self._links.rank_of(host))
        route = travel.route
        return (route.received_partials if kind == PARTIAL else route.received_results)[host]

    def arrived(self, host: int, header: Header) -> None:
        """Note that a message is there."""
        number, kind = divmod(header.tag, 2)
        if kind == PARTIAL:
            self._travel(number).num_partials -= 1
        else:
            self._travel(number).num_results -= 1

    def sent(self, header: Header) -> None:
        """Note that a message has been sent."""
        self._travel(header.tag // 2).num_unsent -= 1

    # Waiting.

    def _awaited(self) -> list[tuple[int, int]]:
        """Return what this rank waits for in the memory of its host: counters of the other ranks, and their values."""
        found = []
        if self._num_combined < self._num_posted:
            found.append((POSTED, self._num_combined + 1))
        if self._may_fill():
            found.append((DONE, self._num_posted - DEPTH + 1))
        if self._may_drain():
            found.append((COMBINED, self._num_done + 1))
        return found

    def _rest(self, seconds: float) -> None:
        """Sleep until a message arrives or another rank of this host wakes this one, but not for long."""
        wakeups, counters = self._wakeups, self._counters
        wakeups.begin_sleep()
        try:
            for kind, value in self._awaited():
                if counters.reached(kind, value):
                    return
            self._links.wait(_REST_SECONDS if wakeups.works else seconds, wakeups.socket)
        finally:
            wakeups.end_sleep()
