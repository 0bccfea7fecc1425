"""The engine: submits, negotiates with the other ranks through rank 0, runs what is released, and waits.

What was submitted stands in the *ledger*; words travel over the *wires*; what is said, and what follows from it, is the
*negotiation*. The engine decides who does it.

Who moves messages and data? Whoever holds ``_wheel``, one thread at a time: a thread that waits for a result takes it
and does the work itself, without being woken by another (such a hand-over costs more than the message). While nobody
waits, a thread in the background does it: so asynchronous collectives go on while the script computes, and rank 0
answers the others at any time.

Submissions are collected until somebody waits, or for a cycle (1 ms); then they travel as one message.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any

from rueda.hvd.common.exceptions import HorovodInternalError
from rueda.hvd.core.coordinator import Coordinator
from rueda.hvd.core.entries import ALLREDUCE, BARRIER, REDUCESCATTER, STUCK, Entry, raw_bytes, sign
from rueda.hvd.core.execute import Executor
from rueda.hvd.core.groups import Groups, moved_in_by, wait_for
from rueda.hvd.core.ledger import Ledger
from rueda.hvd.core.messages import Leave, Message, Withdraw
from rueda.hvd.core.negotiation import Negotiation
from rueda.hvd.core.reduce import check_operation
from rueda.hvd.core.settings import Settings
from rueda.hvd.core.star import open_star
from rueda.hvd.core.timeline import Timeline
from rueda.hvd.core.wires import Wires

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
        self.orders: list[weakref.ref[Any]] = []  # known orders, which a rank that joins must leave
        self.ledger = Ledger(settings.cache_capacity)
        self._ride_bytes = _RIDE_BYTES // size
        self._closing = False
        self._wheel = threading.Lock()  # held by the thread that moves messages and data
        self._progress = threading.Condition()
        self._num_waiting = 0
        self._last_caller = 0.0

        local = about["local_size"] == size
        channels, self.roster = open_star(store, rank, size, about, local=local, seconds=MEETING_SECONDS)
        stall_seconds = settings.first_stall_seconds if rank == 0 else 0.0  # rank 0 looks four times until then
        self._wires = Wires(channels, max(10.0, stall_seconds * 250) if stall_seconds else None)
        self._negotiation = Negotiation(
            self.ledger,
            self._wires,
            Executor(rank, self.sets, self.ledger.entries, self.groups, settings.fusion_bytes, self.timeline),
            Coordinator(size, settings, self.timeline) if rank == 0 else None,
        )
        if settings.timeline is not None and rank == 0:
            self.timeline.start(settings.timeline, settings.mark_cycles)
        self._thread: threading.Thread | None = None
        if size > 1:
            self._thread = threading.Thread(target=self._serve, name="rueda.hvd", daemon=True)
            self._thread.start()

    # For the front.

    @property
    def failure(self) -> HorovodInternalError | None:
        """Why the world was given up, or None."""
        return self.ledger.failure

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
        if signature not in self.ledger.signatures and signature.kind in (ALLREDUCE, REDUCESCATTER):
            for tensor in entry.tensors:
                check_operation(signature.operation, tensor.dtype)
        if signature.device == "cpu":
            num_bytes = sum([tensor.nbytes for tensor in entry.tensors])
            if num_bytes <= self._ride_bytes and self.size > 1:
                entry.payload = raw_bytes(entry.tensors)
        else:
            entry.event = moved_in_by(entry.tensors)
        first = self.ledger.add(entry)
        if self.size == 1:
            self._take_wheel_once()
        elif first and not waits:
            self._wires.ring()

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
                    self._negotiation.turn(entry)
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
        entry = Entry(0, "join", sign(BARRIER), [])
        self.ledger.add_join(entry)
        if self.size == 1:
            self._take_wheel_once()
        last: int = self.wait(entry)
        for order in orders:
            order.forget()
        self.ledger.count_anew()
        return last

    def report_stuck(self, name: str, seconds: float) -> None:
        """Tell rank 0 that something which is not negotiated has been waiting here, so that it can name who is late."""
        self.ledger.request(0, name, sign(STUCK), seconds)
        self._wires.ring()

    def report_free(self, name: str) -> None:
        """Take back :meth:`report_stuck`."""
        self._say(Withdraw(0, name))

    def _say(self, message: Message) -> None:
        self.ledger.say(message)
        self._wires.ring()

    def close(self) -> None:
        """Say good-bye, wait a little for the others to do the same, and leave nothing behind."""
        if self.size > 1 and self.failure is None:
            self._part()
        self._closing = True
        self._wires.ring()
        if self._thread is not None:
            self._thread.join()
        if self.failure is None:  # also ends the waiting of other threads
            self._negotiation.fail(HorovodInternalError("hvd has been shut down; call hvd.init() to start again"))
            self._wires.ring()
        with self._wheel:
            self._negotiation.tell("rank 0 has shut down")
            self._wires.close()
            self.groups.close()
        self.timeline.stop()

    def _part(self) -> None:
        self._say(Leave())
        deadline = time.monotonic() + PARTING_SECONDS
        negotiation = self._negotiation
        while not negotiation.parted and self.failure is None and time.monotonic() < deadline:
            if self._wheel.acquire(blocking=False):
                try:
                    negotiation.flush()
                    if not negotiation.parted and self.failure is None:
                        negotiation.hear(100)
                finally:
                    self._let_go()
            else:
                with self._progress:
                    if self._wheel.locked():
                        self._progress.wait(0.1)

    # At the wheel.

    def _take_wheel_once(self) -> bool:
        """Move what there is to move; gives False if another thread is at the wheel."""
        if not self._wheel.acquire(blocking=False):
            return False
        try:
            self._negotiation.flush()
            if self.size > 1:
                self._negotiation.hear(0)
        finally:
            self._let_go()
        return True

    def _let_go(self) -> None:
        self._wheel.release()
        if self._num_waiting:
            with self._progress:
                self._progress.notify_all()

    # In the background.

    def _serve(self) -> None:
        pause, longest = _PAUSE_SECONDS
        while not self._closing:
            self._wires.look()
            if self.ledger.outbox and not self._closing:
                time.sleep(self.settings.cycle_seconds)  # collect: what is submitted together travels together
            recently = time.monotonic() - self._last_caller < _LEAVE_ALONE_SECONDS
            if recently or not self._take_wheel_once():
                self._wires.pause(pause)
                pause = min(2 * pause, longest)
            else:
                pause = _PAUSE_SECONDS[0]
