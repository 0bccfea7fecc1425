"""The engine: submits, negotiates with the other ranks through rank 0, runs what is released, and waits.

Who moves messages and data? Whoever holds ``_wheel``, one thread at a time: a thread that waits for a result takes it
and does the work itself, without being woken by another (such a hand-over costs more than the message). While nobody
waits, a thread in the background does it: so asynchronous collectives go on while the script computes, and rank 0
answers the others at any time.

Submissions are collected until somebody waits, or for a cycle (1 ms); then they travel as one message.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
import weakref
from typing import Any

from rueda.hvd.common.exceptions import HorovodInternalError, MismatchError, StallError
from rueda.hvd.core import coordinator as words
from rueda.hvd.core.coordinator import Coordinator
from rueda.hvd.core.entries import (
    ALLREDUCE,
    BARRIER,
    KINDS,
    REDUCESCATTER,
    STUCK,
    Entry,
    Key,
    Signature,
    raw_bytes,
    sign,
)
from rueda.hvd.core.execute import Executor
from rueda.hvd.core.groups import Groups, moved_in_by, wait_for
from rueda.hvd.core.reduce import check_operation
from rueda.hvd.core.settings import Settings
from rueda.hvd.core.star import open_star, pack
from rueda.hvd.core.timeline import Timeline

MEETING_SECONDS = 120.0
PARTING_SECONDS = 5.0
_RIDE_BYTES = 2048  # of all ranks together: above, a process group is faster than rank 0's sockets
_LEAVE_ALONE_SECONDS = 0.001  # the background does not compete with a caller that came so recently,
_PAUSE_SECONDS = (0.002, 0.016)  # but looks again after a pause, which grows while callers keep coming


class Engine:
    """One rank's part in a world of collectives by name.

    Args:
        store: where the ranks meet (fresh for every world); None alone.
        rank: this worker's number.
        size: how many there are.
        about: what the others shall know of this worker: host, local_rank, local_size.
        settings: see :class:`Settings`.
    """

    def __init__(self, store: Any, rank: int, size: int, about: dict[str, Any], settings: Settings) -> None:
        self.rank = rank
        self.size = size
        self.about = about
        self.settings = settings
        self.timeline = Timeline()
        self.sets: dict[int, tuple[int, ...]] = {0: tuple(range(size))}
        self.groups = Groups(store, rank)
        self.failure: HorovodInternalError | None = None
        self.orders: list[weakref.ref[Any]] = []  # known orders, which a rank that joins must leave
        self._entries: dict[Key, Entry] = {}
        self._executor = Executor(rank, self.sets, self._entries, self.groups, settings.fusion_bytes, self.timeline)
        self._outbox: list[tuple[Any, ...]] = []
        self._numbers: dict[Signature, tuple[int, Signature]] = {}
        self._counts: dict[tuple[int, int], int] = {}
        self._titles: dict[str, int] = {}
        self._joins = 0
        self._ride_bytes = _RIDE_BYTES // size
        self._joining: Entry | None = None
        self._parted = False
        self._closing = False
        self._lock = threading.Lock()  # entries, outbox, counters
        self._wheel = threading.Lock()  # held by the thread that moves messages and data
        self._progress = threading.Condition()
        self._work_waits = threading.Event()
        self._num_waiting = 0
        self._last_caller = 0.0

        local = about["local_size"] == size
        self._channels, self.roster = open_star(store, rank, size, about, local=local, seconds=MEETING_SECONDS)
        self._coordinator = Coordinator(size, settings, self.timeline) if rank == 0 else None
        self._ranks = {channel.fileno(): other for other, channel in self._channels.items()}
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)
        self._poller = self._new_poller()
        if settings.timeline is not None and rank == 0:
            self.timeline.start(settings.timeline, settings.mark_cycles)
        self._thread: threading.Thread | None = None
        if size > 1:
            self._thread = threading.Thread(target=self._serve, name="rueda.hvd", daemon=True)
            self._thread.start()

    # For the front.

    def name(self, number: int, kind: int) -> str:
        """Name an unnamed collective: the n-th of its kind in its process set meets the n-th of the other ranks."""
        with self._lock:
            count = self._counts[number, kind] = self._counts.get((number, kind), 0) + 1
        return f"{KINDS[kind]}.noname.{count}" if not self._joins else f"{KINDS[kind]}.noname.{self._joins}.{count}"

    def title(self, what: str) -> str:
        """Name something that every rank makes in the same order (an optimizer)."""
        with self._lock:
            self._titles[what] = self._titles.get(what, 0) + 1
            return f"{what}.{self._titles[what]}"

    def submit(self, entry: Entry, *, waits: bool = False) -> None:
        """Announce a collective; it runs when all ranks have.

        Args:
            entry: what to do.
            waits: the caller will wait for it at once.

        Raises:
            ValueError: a collective of this name is still in flight.
            HorovodInternalError: the world has failed before.
        """
        signature = entry.signature
        if signature not in self._numbers and signature[0] in (ALLREDUCE, REDUCESCATTER):
            for tensor in entry.tensors:
                check_operation(signature[1], tensor.dtype)
        if signature[5] == "cpu":
            num_bytes = sum([tensor.nbytes for tensor in entry.tensors])
            if num_bytes <= self._ride_bytes and self.size > 1:
                entry.payload = raw_bytes(entry.tensors)
        else:
            entry.event = moved_in_by(entry.tensors)
        with self._lock:
            if self.failure is not None:
                raise type(self.failure)(*self.failure.args)
            if entry.key in self._entries:
                raise ValueError(
                    f"{entry.key[1]!r}: expected a name that is not in flight, got one that is; "
                    "synchronise the first, or give them different names"
                )
            self._entries[entry.key] = entry
            known = self._numbers.get(signature)
            if known is None:
                known = self._define(signature)
            number, entry.signature = known
            outbox = self._outbox
            first = not outbox
            outbox.append((words.REQUEST, *entry.key, number, entry.extra, entry.payload))
        if self.size == 1:
            self._take_wheel_once()
        elif first and not waits:
            self._ring()

    def _define(self, signature: Signature) -> tuple[Any, Signature]:
        """Give a signature a number, once it was spelled out; and the one object that stands for all its equals."""
        if len(self._numbers) >= self.settings.cache_capacity:
            return signature, signature
        number = len(self._numbers)
        self._numbers[signature] = (number, signature)
        self._outbox.append((words.DEFINE, number, signature))
        return number, signature

    def run(self, entry: Entry) -> Any:
        """Submit and wait."""
        self.submit(entry, waits=True)
        return self.wait(entry)

    def poll(self, entry: Entry) -> bool:
        """Say whether a collective has ended; helps it along."""
        if not entry.done:
            self._take_wheel_once()
        return entry.done

    def wait(self, entry: Entry) -> Any:
        """Wait until a collective has ended, and give its result.

        Raises:
            HorovodInternalError: it failed, on all ranks alike.
        """
        while not entry.done:
            if self._wheel.acquire(blocking=False):
                try:
                    self._turn(entry)
                finally:
                    self._last_caller = time.monotonic()
                    self._let_go()
            else:
                with self._progress:
                    self._num_waiting += 1
                    if not entry.done and self._wheel.locked():
                        self._progress.wait(1.0)
                    self._num_waiting -= 1
        if entry.error is not None:
            raise entry.error
        wait_for(entry.event)
        return entry.result

    def join(self) -> int:
        """Give zeros to the others' reductions until all ranks have joined; gives the last that did."""
        self.groups.sweep()
        orders = [order for order in [reference() for reference in self.orders] if order is not None]
        for order in orders:
            order.leave()
        entry = Entry((0, "join"), sign(BARRIER), [])
        with self._lock:
            if self.failure is not None:
                raise type(self.failure)(*self.failure.args)
            self._joining = entry
            self._outbox.append((words.JOIN,))
        if self.size == 1:
            self._take_wheel_once()
        last: int = self.wait(entry)
        for order in orders:
            order.forget()
        with self._lock:  # the ranks have counted differently meanwhile: all begin again, with new names
            self._joins += 1
            self._counts.clear()
        return last

    def report_stuck(self, name: str, seconds: float) -> None:
        """Tell rank 0 that something which is not negotiated has been waiting here, so that it can name who is late."""
        self._say((words.REQUEST, 0, name, sign(STUCK), seconds, None))

    def report_free(self, name: str) -> None:
        """Take back :meth:`report_stuck`."""
        self._say((words.WITHDRAW, 0, name))

    def _say(self, item: tuple[Any, ...]) -> None:
        with self._lock:
            self._outbox.append(item)
        self._ring()

    def close(self) -> None:
        """Say good-bye, wait a little for the others to do the same, and leave nothing behind."""
        if self.size > 1 and self.failure is None:
            self._part()
        self._closing = True
        self._ring()
        if self._thread is not None:
            self._thread.join()
        if self.failure is None:  # also ends the waiting of other threads
            self._fail(HorovodInternalError("hvd has been shut down; call hvd.init() to start again"))
            self._ring()
        with self._wheel:
            self._tell("rank 0 has shut down")
            for channel in self._channels.values():
                channel.close()
            self.groups.close()
            self._bell.close()
            self._rope.close()
        self.timeline.stop()

    def _part(self) -> None:
        with self._lock:
            self._outbox.append((words.BYE,))
        self._ring()
        deadline = time.monotonic() + PARTING_SECONDS
        while not self._parted and self.failure is None and time.monotonic() < deadline:
            if self._wheel.acquire(blocking=False):
                try:
                    self._flush()
                    if not self._parted and self.failure is None:
                        self._handle(self._poller.poll(100))
                finally:
                    self._let_go()
            else:
                with self._progress:
                    if self._wheel.locked():
                        self._progress.wait(0.1)

    # At the wheel.

    def _turn(self, until: Entry) -> None:
        """Move messages and data until an entry is done; blocks in the poll, where no lock of Python is held."""
        self._flush()
        while not until.done:
            self._handle(self._poller.poll(self._poll_milliseconds()))
            if self._outbox:
                self._flush()

    def _take_wheel_once(self) -> None:
        if self._wheel.acquire(blocking=False):
            try:
                self._flush()
                if self.size > 1:
                    self._handle(self._poller.poll(0))
            finally:
                self._let_go()

    def _let_go(self) -> None:
        self._wheel.release()
        if self._num_waiting:
            with self._progress:
                self._progress.notify_all()

    def _flush(self) -> None:
        """Send what was submitted here since."""
        if not self._outbox:
            return
        with self._lock:
            batch = self._outbox
            self._outbox = []
        if self.timeline.active:
            self.timeline.cycle()
        if self._coordinator is not None:
            self._coordinator.take(0, batch)
            self._release()
        else:
            self._send(0, pack(batch))

    def _handle(self, events: list[tuple[int, int]]) -> None:
        """Read what has arrived; rank 0 answers, the others obey."""
        bell = self._bell.fileno()
        for number, flags in events:
            if number == bell:
                with contextlib.suppress(BlockingIOError):
                    self._bell.recv(4096)
                continue
            rank = self._ranks.get(number)
            if rank is None:
                continue
            channel = self._channels[rank]
            if flags & select.POLLOUT:
                channel.flush()
                self._watch(rank)
            for message in channel.receive():
                if self._coordinator is not None:
                    self._coordinator.take(rank, message)
                else:
                    for response in message:
                        self._obey(response)
            if channel.closed:
                self._lost(rank)
        if self._coordinator is not None:
            self._release()
            text = self._coordinator.check_stalls()
            if text is not None and self.failure is None:
                self._fail(StallError(text), tell=True)

    def _release(self) -> None:
        """Send the responses that are due to whom they concern, then run this rank's own."""
        assert self._coordinator is not None
        responses = self._coordinator.respond()
        if not responses:
            return
        everybody = [response for members, response in responses if len(list(members)) == self.size]
        if len(everybody) == len(responses):
            frame = pack(everybody)
            for rank in self._channels:
                self._send(rank, frame)
            mine = everybody
        else:
            for rank in self._channels:
                own = [response for members, response in responses if rank in members]
                if own:
                    self._send(rank, pack(own))
            mine = [response for members, response in responses if 0 in members]
        for response in mine:
            self._obey(response)

    def _obey(self, response: tuple[Any, ...]) -> None:
        what = response[0]
        if what == words.RUN:
            try:
                entries = self._executor.run(*response[1:])
            except Exception as error:
                text = f"{KINDS[response[1]]} {response[3]}: {str(error).splitlines()[0] if str(error) else error!r}"
                failure = HorovodInternalError(f"{text}; the world is given up: call hvd.shutdown() and hvd.init()")
                failure.__cause__ = error
                self._fail(failure, tell=True)
                return
            for entry in entries:
                entry.done = True
        elif what == words.ERROR:
            _, number, name, about, text = response
            error_type = MismatchError if about == words.MISMATCH else HorovodInternalError
            if name == "" and self._joining is not None:
                joining, self._joining = self._joining, None
                joining.error = error_type(text)
                joining.done = True
                return
            failed = self._entries.pop((number, name), None)
            if failed is not None:
                failed.error = error_type(text)
                failed.done = True
        elif what == words.JOINED:
            if self._joining is not None:
                joining, self._joining = self._joining, None
                joining.result = response[1]
                joining.done = True
        elif what == words.BYE:
            self._parted = True
        elif what == words.ABORT:
            self._fail(
                StallError(response[1]) if response[1].startswith("stalled") else HorovodInternalError(response[1])
            )

    def _send(self, rank: int, frame: bytes) -> None:
        channel = self._channels[rank]
        channel.send(frame)
        if channel.must_send:
            self._watch(rank)

    def _watch(self, rank: int) -> None:
        channel = self._channels[rank]
        if not channel.closed:
            self._poller.modify(channel, select.POLLIN | (select.POLLOUT if channel.must_send else 0))

    def _lost(self, rank: int) -> None:
        """A connection has closed: normal after a good-bye, else the rank has died."""
        number = self._channels[rank].fileno()
        if number in self._ranks:
            del self._ranks[number]
            self._poller.unregister(number)
        expected = rank in self._coordinator.gone if self._coordinator is not None else self._parted
        if not expected and self.failure is None:
            self._fail(
                HorovodInternalError(f"rank {rank} is gone: its connection closed without a good-bye"), tell=True
            )

    def _fail(self, failure: HorovodInternalError, *, tell: bool = False) -> None:
        """Give the world up: everything in flight, and everything submitted later, raises."""
        with self._lock:
            if self.failure is not None:  # what came first is the reason for what follows
                return
            self.failure = failure
            entries = list(self._entries.values())
            self._entries.clear()
            if self._joining is not None:
                entries.append(self._joining)
                self._joining = None
        for entry in entries:
            entry.error = type(failure)(*failure.args)
            entry.done = True
        if tell:
            self._tell(str(failure))

    def _tell(self, text: str) -> None:
        """Let rank 0 tell the others, as far as they are still there, that the world is given up."""
        if self._coordinator is not None:
            frame = pack([(words.ABORT, text)])
            for rank, channel in self._channels.items():
                if rank not in self._coordinator.gone and not channel.closed:
                    channel.send(frame)

    # In the background.

    def _serve(self) -> None:
        poller = self._new_poller()
        watched = len(self._ranks)
        pause, longest = _PAUSE_SECONDS
        while not self._closing:
            poller.poll(self._idle_milliseconds())
            if self._outbox and not self._closing:
                time.sleep(self.settings.cycle_seconds)  # collect: what is submitted together travels together
            recently = time.monotonic() - self._last_caller < _LEAVE_ALONE_SECONDS
            if recently or not self._wheel.acquire(blocking=False):
                self._work_waits.clear()
                self._work_waits.wait(pause)
                pause = min(2 * pause, longest)
                continue
            pause = _PAUSE_SECONDS[0]
            try:
                self._flush()
                self._handle(self._poller.poll(0))
            finally:
                self._let_go()
            if len(self._ranks) != watched:
                poller = self._new_poller()
                watched = len(self._ranks)

    def _new_poller(self) -> select.poll:
        poller = select.poll()
        poller.register(self._bell, select.POLLIN)
        for number in self._ranks:
            poller.register(number, select.POLLIN)
        return poller

    def _ring(self) -> None:
        """Wake whoever polls or pauses."""
        self._work_waits.set()
        with contextlib.suppress(OSError):  # full, so it rings already; or closed
            self._rope.send(b"!")

    def _poll_milliseconds(self) -> float | None:
        return self._idle_milliseconds()

    def _idle_milliseconds(self) -> float | None:
        if any(channel.must_send for channel in self._channels.values()):
            return 1.0
        if self._coordinator is None:
            return None
        limits = [s for s in (self.settings.stall_seconds, self.settings.stall_shutdown_seconds) if s]
        return max(10.0, min(limits) * 250) if limits else None
