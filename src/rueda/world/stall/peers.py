"""The connections between the watchers: each worker listens, and asks another one over a connection of its own.

The workers exchange their addresses once, through the store, in a thread of their own: nobody waits for it. A question
and its answer are one line of JSON each, sent after both sides have proved that they belong to the job
(:mod:`rueda.world.authentication`).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import socket
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from torch.distributed.distributed_c10d import Store

from rueda.world import authentication, network
from rueda.world.authentication import AuthenticatingListener, derived_key
from rueda.world.rendezvous import known_key
from rueda.world.stall.stacks import ENDED_OR_STOPPED, process_state

Message = dict[str, Any]
_PURPOSE = "stall watcher"
_ANSWER_SECONDS = 5.0
_MOST_BYTES = 1 << 20
_AT_ONCE = 32


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A worker as the others know it: where it answers, its host and process, and the file of its stacks."""

    addresses: list[str]
    port: int
    host: str
    pid: int
    stacks: int | None


class Peers:
    """The other workers of a job.

    Args:
        store: a store that is new for every world.
        rank: the rank of this worker.
        size: the number of workers.
        local: whether all workers are on this host.
        answer: answers a question, in a thread of its own.
        stacks: the descriptor of this worker's stacks (:func:`rueda.world.stall.stacks.offer_stacks`).
    """

    def __init__(
        self, store: Store, rank: int, size: int, *, local: bool, answer: Callable[[Message], Message],
        stacks: int | None,
    ) -> None:  # fmt: skip
        self.rank = rank
        self.size = size
        self.known: list[Peer] = []  # by rank; empty until all are known
        self._store = store
        self._local = local
        self._answer = answer
        self._stacks = stacks
        self._key = b""
        self._stopped = threading.Event()
        self._woken, self._wake = socket.socketpair()
        self._threads = [
            threading.Thread(target=self._serve, name="rueda stall answers", daemon=True),
            threading.Thread(target=self._learn, name="rueda stall peers", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop listening; a thread that waits for a store that does not answer is not waited for."""
        self._stopped.set()
        self._wake.send(b"!")
        for thread in self._threads:
            thread.join(1.0)
        self._wake.close()
        self._woken.close()

    def ask(self, ranks: Iterable[int], question: Message) -> dict[int, Message]:
        """Ask some ranks at once, and return the answers of those that answer in time."""
        wanted = list(ranks) if self.known else []
        if not wanted:
            return {}
        with ThreadPoolExecutor(min(_AT_ONCE, len(wanted)), thread_name_prefix="rueda stall asks") as pool:
            answers = pool.map(lambda rank: self._ask(self.known[rank], question), wanted)
            return {rank: answer for rank, answer in zip(wanted, answers, strict=True) if answer is not None}

    def _ask(self, peer: Peer, question: Message) -> Message | None:
        if peer.host == socket.gethostname() and process_state(peer.pid) in ENDED_OR_STOPPED:
            return None
        connection = authentication.connect(peer.addresses, peer.port, self._key, _PURPOSE, seconds=_ANSWER_SECONDS)
        if connection is None:
            return None
        with connection, contextlib.suppress(OSError, ValueError):
            connection.settimeout(_ANSWER_SECONDS)
            connection.sendall(json.dumps(question).encode() + b"\n")
            with connection.makefile("rb") as stream:
                answer: Message = json.loads(stream.readline(_MOST_BYTES))
                return answer
        return None

    def _serve(self) -> None:
        # Without rank 0's store there is nobody to find; strangers cannot cause an error here.
        with contextlib.suppress(OSError, RuntimeError), selectors.DefaultSelector() as selector:
            store = own_connection(self._store)
            if self.rank == 0:
                store.set("token", secrets.token_hex(16))
            self._key = derived_key(known_key(), self._read(store, "token"))
            address = "127.0.0.1" if self._local else network.chosen_address(os.environ) or ""
            listener = socket.create_server((address, 0), backlog=64)
            port = listener.getsockname()[1]
            addresses = [address] if address else network.reachable_addresses()
            own = Peer(addresses=addresses, port=port, host=socket.gethostname(), pid=os.getpid(), stacks=self._stacks)
            authenticating = AuthenticatingListener(
                [listener], self._key, _PURPOSE, selector=selector, admit=self._admit
            )
            try:
                store.set(f"peer/{self.rank}", json.dumps(asdict(own)))
                selector.register(self._woken, selectors.EVENT_READ, lambda: None)
                while not self._stopped.is_set():
                    for key, _ in selector.select(5.0):
                        key.data()
                    authenticating.close_expired()
            finally:
                authenticating.close()
                authenticating.report()

    def _admit(self, connection: socket.socket) -> None:
        threading.Thread(target=self._reply, args=(connection,), name="rueda stall reply", daemon=True).start()

    def _reply(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError, RuntimeError):
            connection.settimeout(_ANSWER_SECONDS)
            with connection.makefile("rb") as stream:
                question = json.loads(stream.readline(_MOST_BYTES))
            connection.sendall(json.dumps(self._answer(question)).encode() + b"\n")

    def _learn(self) -> None:
        """Learn the addresses of all workers: rank 0 collects them, so that each of the others reads one key."""
        # Without the store, or with contents that no worker has written, nobody is asked.
        with contextlib.suppress(OSError, RuntimeError, ValueError, TypeError):
            store = own_connection(self._store)
            if self.rank == 0:
                found = [self._read(store, f"peer/{rank}") for rank in range(self.size)]
                store.set("peers", json.dumps(found))
            self.known = [Peer(**json.loads(text)) for text in json.loads(self._read(store, "peers"))]

    def _read(self, store: Store, key: str) -> str:
        """Wait for a key without blocking the store, which another thread of this process may need."""
        pause = 0.01
        while not store.check([key]):
            if self._stopped.wait(pause):
                raise RuntimeError("stopped")
            pause = min(2 * pause, 1.0)
        return store.get(key).decode()


def own_connection(store: Store) -> Store:
    """Return a store with a connection of its own, since one serves one thread at a time."""
    return store.clone() if hasattr(store, "clone") else store
