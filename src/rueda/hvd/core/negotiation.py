"""What happens at the wheel: this rank's words go out, the others' come in, rank 0 answers, and all obey.

One thread at a time is at the wheel (:mod:`rueda.hvd.core.engine` says which), so nothing here needs a lock. Only
:meth:`Negotiation.fail`, without ``tell``, may be called from anywhere.
"""

from __future__ import annotations

from rueda.hvd.common.exceptions import HorovodInternalError, MismatchError, StallError
from rueda.hvd.core.coordinator import Coordinator
from rueda.hvd.core.entries import KINDS, Entry
from rueda.hvd.core.execute import Executor
from rueda.hvd.core.ledger import Ledger
from rueda.hvd.core.messages import Abort, AllLeft, Joined, Message, Refuse, Run, decode, encode
from rueda.hvd.core.star import pack
from rueda.hvd.core.wires import Wires


class Negotiation:
    """Moves messages and data.

    Args:
        ledger: what this rank has submitted.
        wires: to the other ranks.
        executor: runs what is released.
        coordinator: decides, on rank 0; None elsewhere.
    """

    def __init__(self, ledger: Ledger, wires: Wires, executor: Executor, coordinator: Coordinator | None) -> None:
        self.parted = False  # all ranks have said good-bye
        self._size = len(executor.sets[0])
        self._ledger = ledger
        self._wires = wires
        self._executor = executor
        self._coordinator = coordinator
        self._timeline = executor.timeline

    def turn(self, until: Entry) -> None:
        """Move messages and data until an entry is done."""
        wires, ledger = self._wires, self._ledger
        self.flush()
        while not until.done:
            self.hear(wires.idle_milliseconds())
            if ledger.outbox:
                self.flush()

    def flush(self) -> None:
        """Send what was submitted here since."""
        if not self._ledger.outbox:
            return
        batch = self._ledger.take_outbox()
        if self._timeline.active:
            self._timeline.cycle()
        if self._coordinator is not None:
            self._coordinator.take(0, batch)
            self._release()
        else:
            self._wires.send(0, pack(encode(batch)))

    def hear(self, milliseconds: float | None) -> None:
        """Wait so long for words of others; rank 0 answers, the others obey."""
        coordinator = self._coordinator
        for rank, messages, gone in self._wires.read(milliseconds):
            for message in messages:
                if coordinator is not None:
                    coordinator.take(rank, decode(message))
                else:
                    for response in decode(message):
                        self._obey(response)
            if gone:
                self._lost(rank)
        if coordinator is not None:
            self._release()
            text = coordinator.check_stalls()
            if text is not None and self._ledger.failure is None:
                self.fail(StallError(text), tell=True)

    def _release(self) -> None:
        """Send the responses that are due to whom they concern, then run this rank's own."""
        assert self._coordinator is not None
        responses = self._coordinator.respond()
        if not responses:
            return
        everybody = [message for ranks, message in responses if len(ranks) == self._size]
        if len(everybody) == len(responses):
            frame = pack(encode(everybody))
            for rank in self._wires.channels:
                self._wires.send(rank, frame)
            mine = everybody
        else:
            for rank in self._wires.channels:
                own = [message for ranks, message in responses if rank in ranks]
                if own:
                    self._wires.send(rank, pack(encode(own)))
            mine = [message for ranks, message in responses if 0 in ranks]
        for message in mine:
            self._obey(message)

    def _obey(self, message: Message) -> None:
        if isinstance(message, Run):
            try:
                entries = self._executor.run(message)
            except Exception as error:
                reason = str(error).splitlines()[0] if str(error) else repr(error)
                text = f"{KINDS[message.kind]} {message.names}: {reason}"
                failure = HorovodInternalError(f"{text}; the world is given up: call hvd.shutdown() and hvd.init()")
                failure.__cause__ = error
                self.fail(failure, tell=True)
                return
            for entry in entries:
                entry.done = True
        elif isinstance(message, Refuse):
            error_type = MismatchError if message.mismatch else HorovodInternalError
            self._ledger.refuse(message.process_set, message.name, error_type(message.text))
        elif isinstance(message, Joined):
            self._ledger.end_join(message.last_rank)
        elif isinstance(message, AllLeft):
            self.parted = True
        elif isinstance(message, Abort):
            self.fail(StallError(message.text) if message.stalled else HorovodInternalError(message.text))

    def _lost(self, rank: int) -> None:
        """A connection has closed: normal after a good-bye, else the rank has died."""
        expected = rank in self._coordinator.gone if self._coordinator is not None else self.parted
        if not expected and self._ledger.failure is None:
            self.fail(HorovodInternalError(f"rank {rank} is gone: its connection closed without a good-bye"), tell=True)

    def fail(self, failure: HorovodInternalError, *, tell: bool = False) -> None:
        """Give the world up: everything in flight, and everything submitted later, raises."""
        if self._ledger.fail(failure) and tell:
            self.tell(str(failure), stalled=isinstance(failure, StallError))

    def tell(self, text: str, *, stalled: bool = False) -> None:
        """Let rank 0 tell the others, as far as they are still there, that the world is given up."""
        if self._coordinator is not None:
            frame = pack(encode([Abort(text, stalled)]))
            for rank in self._wires.channels:
                if rank not in self._coordinator.gone:
                    self._wires.send(rank, frame)
