"""The negotiation: this rank's requests go to the coordinator, and its responses are executed.

Only the thread that holds the progress lock (:mod:`rueda.hvd.core.engine`) calls these methods, so they need no lock of
their own. The exception is :meth:`Negotiation.fail`, which any thread may call.
"""

from __future__ import annotations

import threading
from itertools import chain

from rueda.hvd.common.exceptions import HorovodInternalError, MismatchError, StallError
from rueda.hvd.core.channel import pack
from rueda.hvd.core.control_channels import ControlChannels, Received
from rueda.hvd.core.coordinator import Coordinator
from rueda.hvd.core.entries import Entry
from rueda.hvd.core.execute import Executor
from rueda.hvd.core.messages import (
    Abort,
    AllLeft,
    Message,
    Number,
    Refuse,
    Replay,
    Run,
    RunRepeated,
    decode,
    encode,
)  # fmt: skip
from rueda.hvd.core.prelude import Kept
from rueda.hvd.core.tensor_queue import TensorQueue


class Negotiation:
    """Exchanges messages with the other ranks and runs the collectives that are ready.

    Args:
        queue: the collectives that this rank has submitted.
        channels: the control channels to the other ranks.
        executor: runs the collectives.
        coordinator: decides what runs, on rank 0; None on other ranks.
    """

    def __init__(
        self, queue: TensorQueue, channels: ControlChannels, executor: Executor, coordinator: Coordinator | None
    ) -> None:
        self.all_left = False
        self.num_replayed = 0
        """how many collectives of this rank's prelude have returned what the others got (:mod:`.prelude`)"""
        self._size = len(executor.sets[0])
        self._queue = queue
        self._channels = channels
        self._executor = executor
        self._coordinator = coordinator
        self._timeline = executor.timeline
        self._executing_thread: int | None = None
        self._unread: list[Received] = []  # came while a transfer was under way

    def send_requests(self) -> None:
        """Send the contents of the outbox to the coordinator."""
        if not self._queue.has_unsent:
            return
        self._channels.alarm.cancel()  # first: what comes after the next line sets it again
        batch = self._queue.take_outbox()
        if self._timeline.active:
            self._timeline.cycle()
        if self._coordinator is not None:
            self._coordinator.receive(0, batch)
            self._send_responses()
        else:
            self._channels.send(0, pack(encode(batch)))

    def receive(self, milliseconds: float | None) -> None:
        """Wait up to ``milliseconds`` for messages; rank 0 answers requests, other ranks execute responses.

        Then send what was submitted meanwhile, by this thread or another.
        """
        coordinator = self._coordinator
        received = self._channels.receive(0 if self._unread else milliseconds)
        if self._unread:
            received, self._unread = [*self._unread, *received], []
        for rank, messages, closed in received:
            for message in messages:
                if coordinator is not None:
                    coordinator.receive(rank, decode(message))
                else:
                    for response in decode(message):
                        self._execute(response)
            if closed:
                self._on_disconnect(rank)
        if coordinator is not None:
            self._send_responses()
            text = coordinator.check_stalls()
            if text is not None:
                self.fail(StallError(text), notify=True)
        self.send_requests()

    def _send_responses(self) -> None:
        """Send the coordinator's responses to the ranks that they concern, then execute those of this rank."""
        assert self._coordinator is not None
        responses = self._coordinator.respond()
        if not responses:
            return
        for_all = [message for ranks, message in responses if len(ranks) == self._size]
        if len(for_all) == len(responses):
            frame = pack(encode(for_all))
            for rank in self._channels.channels:
                self._channels.send(rank, frame)
            own = for_all
        else:
            for rank in self._channels.channels:
                theirs = [message for ranks, message in responses if rank in ranks]
                if theirs:
                    self._channels.send(rank, pack(encode(theirs)))
            own = [message for ranks, message in responses if 0 in ranks]
        for message in own:
            self._execute(message)

    def _execute(self, response: Message) -> None:
        if isinstance(response, RunRepeated | Run):
            try:
                self._executing_thread = threading.get_ident()
                entries: list[Entry] = self._executor.run(response)
            except Exception as error:
                self.fail_because(self._executor.describe(response), error)
                return
            finally:
                self._executing_thread = None
            for entry in entries:
                entry.done = True
        elif isinstance(response, Number):
            self._queue.repetitions.define(*response)
        elif isinstance(response, Refuse):
            error_type = MismatchError if response.mismatch else HorovodInternalError
            key = (response.process_set, response.kind, response.name)
            self._queue.fail_entry(key, error_type(response.text))
        elif isinstance(response, Replay):
            waiting = self._queue.entries.pop((response.process_set, response.kind, response.name), None)
            if waiting is not None:
                Kept(*response[3:]).give(waiting)
                self.num_replayed += 1
                waiting.done = True
        elif isinstance(response, AllLeft):
            self.all_left = True
        elif isinstance(response, Abort):
            error_type = StallError if response.stalled else HorovodInternalError
            self.fail(error_type(response.text), notify=self._coordinator is not None)

    def failure(self) -> HorovodInternalError | None:
        """Return the error that ended the world, or None.

        A thread that waits for a transfer calls it now and then. If it is the one that should receive messages, it
        looks among them for news that the transfer cannot end, and leaves all others for later.
        """
        if self._queue.failure is None and self._executing_thread == threading.get_ident():
            received = self._channels.receive(0)
            self._unread += received
            for rank, messages, closed in received:
                for message in chain.from_iterable(map(decode, messages)):
                    if isinstance(message, Abort):
                        self._execute(message)
                if closed:
                    self._on_disconnect(rank)
        return self._queue.failure

    def _on_disconnect(self, rank: int) -> None:
        """Fail if a connection has closed although its rank has not said that it is shutting down."""
        expected = rank in self._coordinator.left if self._coordinator is not None else self.all_left
        if not expected:
            text = f"rank {rank} is gone: its connection closed without a shutdown"
            self.fail(HorovodInternalError(text), notify=True)

    def fail(self, failure: HorovodInternalError, *, notify: bool = False) -> None:
        """Let all collectives, those in flight and later ones, raise an error; the first failure is kept.

        A transfer that is under way ends with the error, too. With ``notify``, the collectives of all other ranks fail
        as well: the message goes through rank 0.
        """
        if not self._queue.fail(failure):
            return
        if notify:
            self._queue.add_message(Abort(str(failure), isinstance(failure, StallError)))
        self._executor.groups.abort()
        self._channels.wake()

    def fail_because(self, what: str, error: Exception) -> None:
        """Let all collectives of all ranks fail because of an error that was raised on this rank."""
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        failure = HorovodInternalError(
            f"{what}: {reason}; no collective can run any more: call hvd.shutdown() and hvd.init()"
        )
        failure.__cause__ = error
        self.fail(failure, notify=True)

    def send_abort(self, text: str, *, stalled: bool = False) -> None:
        """Tell the ranks that have not left, if this is rank 0, that no collective can run any more."""
        if self._coordinator is not None:
            frame = pack(encode([Abort(text, stalled)]))
            for rank in self._channels.channels.keys() - self._coordinator.left:
                self._channels.send(rank, frame)
