"""The engine: submits collectives, negotiates them with the other ranks through rank 0, runs them, and waits for them.

The *tensor queue* holds what was submitted, the *control channels* carry the messages, and the *negotiation* exchanges
and executes them. The engine decides which thread does this work.

One thread at a time makes progress: the one that holds the *progress lock*. A thread that waits for a result takes the
lock and does the work itself, because waking another thread would take longer than the message. If another thread holds
it, that one is woken to send what this one has submitted, and tells it when a collective has finished. While no thread
waits, a background thread makes progress, so asynchronous collectives advance while the script computes, and rank 0
answers the other ranks at any time.

An error in any of this, in any thread, ends all collectives of all ranks and is their message.

Submissions are collected until a thread waits for one, or for one cycle (1 ms), and are then sent as one message. The
background thread is not woken by a submission, but at the end of its cycle, if nobody has sent it by then.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Any

import torch

from rueda.hvd.common.exceptions import HorovodInternalError
from rueda.hvd.core.channel import connect_channels
from rueda.hvd.core.control_channels import ControlChannels
from rueda.hvd.core.coordinator import Coordinator
from rueda.hvd.core.entries import ALLREDUCE, JOIN, JOIN_SET, REDUCESCATTER, STALL_REPORT, Entry, signature_of, to_bytes
from rueda.hvd.core.execute import Executor
from rueda.hvd.core.messages import Leave, Message, Withdraw
from rueda.hvd.core.negotiation import Negotiation
from rueda.hvd.core.prelude import Prelude
from rueda.hvd.core.process_groups import ProcessGroups, record_event, wait_for_event
from rueda.hvd.core.reduce import check_operation
from rueda.hvd.core.repetitions import Repetition
from rueda.hvd.core.settings import Settings
from rueda.hvd.core.stalls import EngineCollectives
from rueda.hvd.core.tensor_queue import TensorQueue
from rueda.hvd.core.timeline import Timeline
from rueda.world.device import is_gpu
from rueda.world.shared_memory.transport import wanted
from rueda.world.stall import watcher

CONNECT_SECONDS = 120.0
LEAVE_SECONDS = 5.0
_INLINE_BYTES = 2048  # of all ranks together; for more, a process group is faster than the control channel,
_LOCAL_INLINE_BYTES = 1 << 18  # but not on one host, up to as much from rank 0 to all ranks, if a thread waits for it
_CALLER_SECONDS = 0.001  # the background thread does not compete with a caller that was active in this time,
_SLEEP_SECONDS = (0.002, 0.016)  # but sleeps and tries again: its first sleep, and its longest, since it doubles


class Engine:
    """One rank's part in running collectives that are matched by name.

    Args:
        store: the store, new for every world, by which the ranks find each other; None for a single worker.
        rank: the rank of this worker.
        size: the number of workers.
        placement: the local rank of this worker and the number of workers on its machine.
        settings: see :class:`Settings`.
        device: the device of this worker: that of the zeros of a rank that has joined, and of the background thread.
        prelude: in an elastic job, the prelude of this process.
    """

    def __init__(
        self, store: Any, rank: int, size: int, placement: tuple[int, int], settings: Settings, device: torch.device,
        prelude: Prelude | None = None,
    ) -> None:  # fmt: skip
        self.rank = rank
        self.size = size
        self.local_rank, self.local_size = placement
        self.settings = settings
        self.device = device
        self.timeline = Timeline()
        self.sets: dict[int, tuple[int, ...]] = {0: tuple(range(size))}
        self.tensor_queue = TensorQueue(settings.cache_capacity)
        self.groups = ProcessGroups(store, rank, lambda: self._negotiation.failure(), settings.silence_seconds)
        self.bucket_reducers: list[weakref.ref[Any]] = []  # a rank leaves them before it joins
        self.waiting_step: tuple[str, float] | None = None  # the step in whose buckets a thread waits, and since when
        self.resubmitted: dict[str, Any] = {}  # by name: what a framework's interface knows about its repetitions
        self._inline_bytes = self._waited_inline_bytes = _INLINE_BYTES // size
        if self.local_size == size and wanted(os.environ) != "gloo":
            self._waited_inline_bytes = max(self._inline_bytes, _LOCAL_INLINE_BYTES // size**2)
        self.forked = False
        past = prelude if prelude is not None and prelude.is_over else None
        self._prelude = None if past is prelude else prelude  # its results are kept as long as it lasts
        self._closing = False
        self._progress_lock = threading.Lock()  # held by the thread that sends, receives and executes
        self._progress_made = threading.Condition()
        self._num_waiting = 0
        self._last_caller = 0.0

        channels, self.placements = connect_channels(
            store, rank, size, placement, local=self.local_size == size, seconds=CONNECT_SECONDS
        )
        stall_seconds = settings.first_stall_seconds if rank == 0 else 0.0  # rank 0 checks four times in that time
        self._channels = ControlChannels(channels, max(10.0, stall_seconds * 250) if stall_seconds else None)
        entries = self.tensor_queue.entries
        self.executor = Executor(
            rank, device, self.sets, entries, self.tensor_queue.repetitions, self.groups, settings.fusion_bytes,
            self.timeline,
        )  # fmt: skip
        self._negotiation = Negotiation(
            self.tensor_queue,
            self._channels,
            self.executor,
            Coordinator(size, settings, self.timeline, past) if rank == 0 else None,
        )
        if settings.timeline is not None and rank == 0:
            self.timeline.start(settings.timeline, settings.mark_cycles)
        self._thread: threading.Thread | None = None
        if size > 1:
            self._thread = threading.Thread(target=self._run_in_background, name="rueda.hvd", daemon=True)
            self._thread.start()
        self._stalls = EngineCollectives(self)
        watcher.watch(self._stalls)

    @property
    def failure(self) -> HorovodInternalError | None:
        """The error that ended this world, or None."""
        return self.tensor_queue.failure

    def submit(self, entry: Entry, *, waits: bool = False) -> None:
        """Submit a collective, which runs once all ranks have submitted it.

        Args:
            entry: the collective.
            waits: whether the caller will wait for it immediately.

        Raises:
            ValueError: a collective of this name is still in flight.
            HorovodInternalError: the world has failed before.
        """
        signature = entry.signature
        if signature not in self.tensor_queue.signatures and signature.kind in (ALLREDUCE, REDUCESCATTER):
            for tensor in entry.tensors:
                check_operation(signature.operation, tensor.dtype)
        if signature.device == "cpu":
            num_bytes = sum([tensor.nbytes for tensor in entry.tensors])
            # What nobody waits for yet is better fused with its neighbours.
            if num_bytes <= (self._waited_inline_bytes if waits else self._inline_bytes) and self.size > 1:
                entry.payload = to_bytes(entry.tensors)
        else:
            entry.event = record_event(entry.tensors)
            if entry.event is not None:
                self.groups.device = entry.event.device
        first = self.tensor_queue.add(entry, blocks=waits)
        if self.size == 1:
            self._make_progress()
        elif first and not waits:
            self._channels.alarm.set(self.settings.cycle_seconds)

    def submit_repetition(self, entry: Entry, repetition: Repetition) -> None:
        """Submit an all-reduce that has a number; otherwise as :meth:`submit`."""
        if self.tensor_queue.add_repetition(entry, repetition):
            self._channels.alarm.set(self.settings.cycle_seconds)

    def run(self, entry: Entry) -> Any:
        """Submit a collective, wait for it, and return its result."""
        self.submit(entry, waits=True)
        return self.wait(entry)

    def poll(self, entry: Entry) -> bool:
        """Make progress, and return whether a collective has finished."""
        if not entry.done:
            self._make_progress()
        return entry.done

    def wait(self, entry: Entry) -> Any:
        """Wait until a collective has finished, and return its result.

        Raises:
            HorovodInternalError: it failed, as it did on all other ranks.
        """
        while not entry.done:
            if self._progress_lock.acquire(blocking=False):
                try:
                    self._progress_until_done(entry)
                finally:
                    self._last_caller = time.monotonic()
                    self._release_progress_lock()
            else:
                if self.tensor_queue.has_unsent:
                    self._channels.wake_receiver()  # the thread that holds the lock sends it
                with self._progress_made:
                    self._num_waiting += 1
                    if not entry.done and self._progress_lock.locked():
                        self._progress_made.wait(1.0)
                    self._num_waiting -= 1
        if entry.error is not None:
            raise entry.error
        if entry.event is not None:
            wait_for_event(entry.event)
        if self._prelude is not None:
            self._prelude.keep(entry)
        return entry.result

    def end_prelude(self) -> None:
        """Say that this rank has come to ``elastic.run``, as all ranks do; unnamed collectives are counted anew."""
        if self._prelude is not None:
            self._prelude.is_over, self._prelude = True, None
        self.tensor_queue.reset_default_names()

    @property
    def in_prelude(self) -> bool:
        """Whether this rank of an elastic job has not come to ``elastic.run``."""
        return self._prelude is not None

    @property
    def num_replayed(self) -> int:
        """How many collectives of this rank have returned what the others had got (:mod:`rueda.hvd.core.prelude`)."""
        return self._negotiation.num_replayed

    def join(self) -> int:
        """Contribute zeros to the reductions of other ranks until all have joined; return the rank that joined last."""
        self.groups.close_dropped()
        reducers = [reducer for reducer in [reference() for reference in self.bucket_reducers] if reducer is not None]
        for reducer in reducers:
            reducer.leave()
        last: int = self.run(Entry(JOIN_SET, "join", signature_of(JOIN), []))
        for reducer in reducers:
            reducer.end()
        self.tensor_queue.reset_default_names()
        return last

    def report_stall(self, name: str, seconds: float) -> None:
        """Tell rank 0 that an operation without negotiation has waited for ``seconds``; it names the late ranks."""
        self.tensor_queue.add_request(name, signature_of(STALL_REPORT), seconds)
        self._channels.wake()

    def withdraw_stall(self, name: str) -> None:
        """Withdraw a :meth:`report_stall`."""
        self._send(Withdraw(0, STALL_REPORT, name))

    def fail(self, failure: HorovodInternalError) -> None:
        """Let all collectives of all ranks fail; any thread may call it."""
        self._negotiation.fail(failure, notify=True)

    def abort(self, reason: str) -> None:
        """Let all collectives of all ranks fail because a rank is gone, unless they have failed before."""
        self.fail(HorovodInternalError(reason))

    def _send(self, message: Message) -> None:
        self.tensor_queue.add_message(message)
        self._channels.wake()

    def close(self) -> None:
        """Shut down: wait a few seconds for the other ranks to do the same, and release all resources.

        Any thread may call it, also while another one is stuck in a transfer: that one gets an error.
        """
        if self.size > 1 and self.failure is None:
            self._leave()
        self._closing = True
        watcher.unwatch(self._stalls)
        # Threads that still wait for a collective get this error.
        shut_down = HorovodInternalError("hvd has been shut down; call hvd.init() to start again")
        if self._negotiation.all_left or self.size == 1:
            self.tensor_queue.fail(shut_down)
        else:
            self._negotiation.fail(shut_down)
        self._channels.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(LEAVE_SECONDS)
        # Without the lock only if its thread does not return from C++ code, such as the creation of a process group.
        locked = self._progress_lock.acquire(timeout=LEAVE_SECONDS)
        try:
            if locked:
                self._negotiation.send_requests()  # why this rank has failed, if it has
                self._negotiation.send_abort("rank 0 has shut down")
            self._channels.close()
            self.groups.close()
        finally:
            if locked:
                self._progress_lock.release()
        self.timeline.stop()

    def after_fork(self) -> None:
        """Let go of the connections in a forked process: they belong to its parent, which goes on using them."""
        self.forked = True
        self.tensor_queue.refuse(
            HorovodInternalError(
                f"this process was forked from rank {self.rank}; only rank {self.rank} itself can run collectives"
            )
        )
        self._channels.close()
        self.timeline.after_fork()

    def _leave(self) -> None:
        self._send(Leave())
        deadline = time.monotonic() + LEAVE_SECONDS
        while not self._negotiation.all_left and self.failure is None and time.monotonic() < deadline:
            if not self._make_progress(milliseconds=100):
                with self._progress_made:
                    if self._progress_lock.locked():
                        self._progress_made.wait(0.1)

    # Progress.

    def _make_progress(self, milliseconds: float = 0) -> bool:
        """Send requests and wait up to ``milliseconds`` for messages; return False if another thread holds the lock."""
        if not self._progress_lock.acquire(blocking=False):
            return False
        try:
            self._negotiation.send_requests()
            if self.size > 1:
                self._negotiation.receive(0 if self._negotiation.all_left else milliseconds)
        except Exception as error:
            self._negotiation.fail_because(f"rank {self.rank}", error)
        finally:
            self._release_progress_lock()
        return True

    def _progress_until_done(self, entry: Entry) -> None:
        """Send, receive and execute until an entry is done; the caller holds the progress lock."""
        negotiation, channels = self._negotiation, self._channels
        try:
            negotiation.send_requests()
            while not entry.done:
                negotiation.receive(channels.idle_milliseconds())
                if self._num_waiting:
                    self._wake_waiting()
        except Exception as error:
            negotiation.fail_because(f"rank {self.rank}", error)
            if not entry.done:  # the error was raised while the entry was in no table
                entry.error, entry.done = self.failure, True

    def _release_progress_lock(self) -> None:
        self._progress_lock.release()
        if self._num_waiting:
            self._wake_waiting()

    def _wake_waiting(self) -> None:
        with self._progress_made:
            self._progress_made.notify_all()

    def _run_in_background(self) -> None:
        try:
            self._make_progress_in_background()
        except Exception as error:
            self._negotiation.fail_because(f"rank {self.rank}: the background thread", error)
            self._make_progress()

    def _make_progress_in_background(self) -> None:
        sleep, longest = _SLEEP_SECONDS
        if is_gpu(self.device):  # a new thread begins on GPU 0, where every rank would open a context
            torch.get_device_module(self.device).set_device(self.device)
        rang = False
        while not self._closing:
            if not self.tensor_queue.has_unsent:
                rang = self._channels.wait_until_readable()
            if self.tensor_queue.has_unsent and not rang and not self._closing:
                time.sleep(self.settings.cycle_seconds)  # collect submissions, to send them as one message
            active_caller = time.monotonic() - self._last_caller < _CALLER_SECONDS
            if active_caller or not self._make_progress():
                if self.tensor_queue.has_unsent and self._progress_lock.locked():
                    self._channels.wake_receiver()
                rang = self._channels.sleep(sleep)
                sleep = min(2 * sleep, longest)
            else:
                sleep = _SLEEP_SECONDS[0]
