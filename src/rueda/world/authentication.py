"""Authentication of connections: both sides prove that they know the job's key, which is never sent.

The key is a secret of one job. ``rueda run`` makes it and sends it to the agents over their standard input, inside ssh;
a worker finds it in ``RUEDA_JOB_KEY``. A connection begins with a challenge and a response (HMAC, RFC 2104, with
SHA-256), in which ``purpose`` names the service, so that a proof for one service is worth nothing at another:

=================  ===========================================================
server to client   ``s``: 32 random bytes
client to server   ``c``: 32 random bytes; ``HMAC(key, "client" purpose s c)``
server to client   ``HMAC(key, "server" purpose s c)``
=================  ===========================================================

Since ``s`` and ``c`` are new for every connection, a recorded conversation cannot be replayed, and since the two proofs
differ, none can be reflected. Nothing else is read from a connection before its proof was checked.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import secrets
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

KEY_VARIABLE = "RUEDA_JOB_KEY"
_BYTES = 32  # of a nonce and of a proof
_PROOF_SECONDS = 5.0
_MOST_PENDING = 256


def new_key() -> str:
    """Return a new random key, as text for an environment variable."""
    return secrets.token_hex(_BYTES)


def job_key(environ: Mapping[str, str]) -> bytes:
    """Return the job's key from a worker's environment; empty if its launcher gave none.

    >>> job_key({"RUEDA_JOB_KEY": "secret"}), job_key({})
    (b'secret', b'')
    """
    return environ.get(KEY_VARIABLE, "").encode()


def derived_key(key: bytes, text: str) -> bytes:
    """Return a key that only those can compute who know both ``key`` and ``text``."""
    return hmac.digest(key, text.encode(), hashlib.sha256)


def prove(connection: socket.socket, key: bytes, purpose: str, *, seconds: float = _PROOF_SECONDS) -> None:
    """Authenticate as a client on a connection that was just made.

    Args:
        connection: a blocking socket; its timeout is None afterwards.
        key: the job's key.
        purpose: the service; the server must expect the same.
        seconds: the time limit of each step.

    Raises:
        OSError: the server closed the connection, or it does not know the key (``PermissionError``).
    """
    connection.settimeout(seconds)
    challenge = receive_exactly(connection, _BYTES)
    nonce = secrets.token_bytes(_BYTES)
    connection.sendall(nonce + _proof(key, "client", purpose, challenge, nonce))
    if not hmac.compare_digest(receive_exactly(connection, _BYTES), _proof(key, "server", purpose, challenge, nonce)):
        raise PermissionError(errno.EACCES, "the server does not know the job's key")
    connection.settimeout(None)


@dataclass
class _Pending:
    """A connection that has not proved anything yet."""

    host: str
    challenge: bytes
    deadline: float
    answer: bytearray = field(default_factory=bytearray)


class AuthenticatingListener:
    """Accepts connections, hands over those that prove that they know the key, and closes and counts the others.

    It never waits for one connection: all are served by the loop of the caller, which selects on ``selector``, calls
    the function in ``SelectorKey.data`` of each that is ready, and :meth:`close_expired` at least once a second.

    Args:
        listeners: the listening sockets, which it closes in the end.
        key: the job's key.
        purpose: the service; a client must name the same.
        selector: the selector of the caller's loop.
        admit: called with each authenticated connection, which does not block.
        most_pending: how many connections may wait for their proof; beyond it the oldest is closed, so that strangers
            do not use up the open files of this process. A client of the job that is closed so tries again.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        key: bytes,
        purpose: str,
        *,
        selector: selectors.BaseSelector,
        admit: Callable[[socket.socket], None],
        most_pending: int = _MOST_PENDING,
    ) -> None:
        self.num_refused = 0
        self.last_refused = ""  # the address of the last one
        self._key = key
        self._purpose = purpose
        self._selector = selector
        self._admit = admit
        self._most_pending = most_pending
        self._pending: dict[socket.socket, _Pending] = {}  # the oldest first
        self._listeners: list[socket.socket] = []
        self.listen_on(listeners)

    def listen_on(self, listeners: Sequence[socket.socket]) -> None:
        """Listen on these sockets instead of the present ones, which are closed."""
        old, self._listeners = self._listeners, list(listeners)
        for listener in listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, partial(self._accept, listener))
        for listener in old:
            self._accept_all(listener)  # closing resets the connections that wait
            self._selector.unregister(listener)
            listener.close()

    def _accept_all(self, listener: socket.socket) -> None:
        while self._accept(listener):
            pass

    def _accept(self, listener: socket.socket) -> bool:
        try:
            connection, address = listener.accept()
        except BlockingIOError:
            return False
        except OSError as error:  # the connection was reset, or this process has too many open files
            if error.errno in (errno.EMFILE, errno.ENFILE) and not self._refuse_oldest():
                time.sleep(0.01)
            return False
        connection.setblocking(False)
        _send_at_once(connection)
        host = str(address[0]).removeprefix("::ffff:")  # an IPv4 address as a socket for both families shows it
        pending = _Pending(host, secrets.token_bytes(_BYTES), time.monotonic() + _PROOF_SECONDS)
        self._pending[connection] = pending
        self._selector.register(connection, selectors.EVENT_READ, partial(self._read, connection))
        try:
            connection.send(pending.challenge)
        except OSError:
            self._refuse(connection)
        if len(self._pending) > self._most_pending:
            self._refuse_oldest()
        return True

    def _read(self, connection: socket.socket) -> None:
        pending = self._pending.get(connection)
        if pending is None:  # it was refused by another event of the same select
            return
        try:
            data = connection.recv(2 * _BYTES - len(pending.answer))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        pending.answer += data
        if data and len(pending.answer) < 2 * _BYTES:
            return
        nonce, proof = bytes(pending.answer[:_BYTES]), bytes(pending.answer[_BYTES:])
        if not hmac.compare_digest(proof, _proof(self._key, "client", self._purpose, pending.challenge, nonce)):
            self._refuse(connection)
            return
        try:
            connection.send(_proof(self._key, "server", self._purpose, pending.challenge, nonce))
        except OSError:
            self._refuse(connection)
            return
        self._forget(connection)
        self._admit(connection)

    def close_expired(self) -> None:
        """Close the connections that have not proved anything for too long."""
        now = time.monotonic()
        while self._pending and next(iter(self._pending.values())).deadline < now:
            self._refuse_oldest()

    def _refuse_oldest(self) -> bool:
        for connection in self._pending:
            self._refuse(connection)
            return True
        return False

    def _refuse(self, connection: socket.socket) -> None:
        self.num_refused += 1
        self.last_refused = self._pending[connection].host
        self._forget(connection)
        connection.close()

    def _forget(self, connection: socket.socket) -> None:
        del self._pending[connection]
        self._selector.unregister(connection)

    def close(self) -> None:
        """Stop listening, and close the connections that are not authenticated."""
        self.listen_on(())
        for connection in list(self._pending):
            self._forget(connection)
            connection.close()

    def report(self) -> None:
        """Tell the user on standard error if connections were refused."""
        if line := self.refused():
            print(f"rueda: {line}; see SECURITY.md", file=sys.stderr, flush=True)

    def refused(self) -> str | None:
        """Return a line for the user that tells how many connections were refused, or None."""
        if not self.num_refused:
            return None
        connections = "connection" if self.num_refused == 1 else "connections"
        return (
            f"refused {self.num_refused:,} {connections} to the {self._purpose} without the job's key, the last from "
            f"{self.last_refused}"
        )


def _proof(key: bytes, side: str, purpose: str, challenge: bytes, nonce: bytes) -> bytes:
    return hmac.digest(key, b"\0".join((side.encode(), purpose.encode(), challenge, nonce)), hashlib.sha256)


def receive_exactly(connection: socket.socket, num_bytes: int) -> bytes:
    """Read exactly this many bytes from a blocking socket.

    Raises:
        ConnectionError: the connection was closed before.
    """
    data = bytearray()
    while len(data) < num_bytes:
        if not (more := connection.recv(num_bytes - len(data))):
            raise ConnectionError("the connection was closed")
        data += more
    return bytes(data)


def _send_at_once(connection: socket.socket) -> None:
    """Let no message wait for the acknowledgement of the one before (Nagle's algorithm), which may take 40 ms."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def connect(
    addresses: Iterable[str], port: int, key: bytes, purpose: str, *, seconds: float = 3.0
) -> socket.socket | None:
    """Connect to the first of some addresses at which a server knows the key; return None if there is none.

    An open port alone is no sign: an address such as that of Docker's bridge exists on every machine.

    Args:
        addresses: names or addresses of one host.
        port: the port.
        key: the job's key.
        purpose: the service.
        seconds: the time limit of each attempt.
    """
    for address in dict.fromkeys(addresses):
        try:
            connection = socket.create_connection((address, port), timeout=seconds)
        except (OSError, UnicodeError):
            continue
        _send_at_once(connection)
        try:
            prove(connection, key, purpose, seconds=seconds)
            return connection
        except OSError:
            connection.close()
    return None
