"""The control channel: one socket from every rank to rank 0, over which names and small payloads travel.

Why sockets of our own and not a process group: the thread that waits is the thread that reads, so that a message costs
10 µs where a collective of Gloo, which wakes two threads on each side, costs 120; and a rank that dies is noticed at
once, since its socket closes.

Who may connect: whoever knows the token that rank 0 left in the store of this world.
"""

from __future__ import annotations

import json
import marshal
import secrets
import socket
import struct
import time
from typing import Any, TypeAlias

from torch.distributed.distributed_c10d import Store

from rueda.errors import WorldError
from rueda.world import network

_LENGTH = struct.Struct("<I")
_FORMAT = 4  # of marshal: the same for all Pythons that may meet
Roster: TypeAlias = list[dict[str, Any]]


class Channel:
    """Messages, in order, over one socket that never blocks: what does not fit now is sent when there is room."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        self.connection = connection
        self.closed = False
        self._incoming = bytearray()
        self._outgoing = bytearray()

    def fileno(self) -> int:
        """Give the socket's number, so that it can be polled."""
        return self.connection.fileno()

    @property
    def must_send(self) -> bool:
        """True while a part of a message waits for room."""
        return bool(self._outgoing)

    def send(self, frame: bytes) -> None:
        """Send a frame (see :func:`pack`), now or later."""
        if self.closed:
            return
        if self._outgoing:
            self._outgoing += frame
            self.flush()
            return
        try:
            sent = self.connection.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.closed = True
            return
        if sent < len(frame):
            self._outgoing += frame[sent:]

    def flush(self) -> None:
        """Send what waits, as far as there is room."""
        try:
            while self._outgoing:
                del self._outgoing[: self.connection.send(self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True

    def receive(self) -> list[Any]:
        """Give all messages that have arrived; after the other side has gone, ``closed`` is True."""
        messages = []
        incoming = self._incoming
        while not self.closed:
            try:
                data = self.connection.recv(1 << 18)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.closed = True
                break
            if not incoming and len(data) >= 4 and len(data) - 4 == _length(data):
                messages.append(marshal.loads(memoryview(data)[4:]))  # the usual case: one message, whole
            else:
                incoming += data
            if len(data) < 1 << 18:
                break
        start = 0
        while len(incoming) - start >= 4:
            end = start + 4 + _length(incoming, start)
            if end > len(incoming):
                break
            messages.append(marshal.loads(memoryview(incoming)[start + 4 : end].tobytes()))
            start = end
        if start:
            del incoming[:start]
        return messages

    def close(self) -> None:
        """Close the socket."""
        self.closed = True
        self.connection.close()


def _length(data: bytes | bytearray, start: int = 0) -> int:
    """Read how many bytes follow in a frame."""
    length: int
    (length,) = _LENGTH.unpack_from(data, start)
    return length


def pack(message: Any) -> bytes:
    """Write a message of plain values (numbers, strings, bytes, tuples, lists, dicts) as a frame.

    >>> frame = pack((1, "a"))
    >>> frame[:4] == (len(frame) - 4).to_bytes(4, "little")
    True
    """
    data = marshal.dumps(message, _FORMAT)
    return _LENGTH.pack(len(data)) + data


def open_star(
    store: Store, rank: int, size: int, about: dict[str, Any], *, local: bool, seconds: float
) -> tuple[dict[int, Channel], Roster]:
    """Connect all ranks with rank 0 and tell everybody about everybody.

    Args:
        store: where rank 0 leaves its address and the token; fresh for every world.
        rank: this worker's number among ``size``.
        size: how many workers there are.
        about: what the others shall know of this rank (plain JSON).
        local: all workers are on this machine.
        seconds: how long to wait.

    Returns:
        On rank 0 a channel to every other rank, elsewhere the channel to rank 0; and ``about`` of all, in rank order.
    """
    if size == 1:
        return {}, [about]
    try:
        return _serve(store, size, about, local, seconds) if rank == 0 else _connect(store, rank, about, local, seconds)
    except (OSError, RuntimeError) as error:
        raise WorldError(
            f"the control channel: expected {size} ranks within {seconds:g} s, got {str(error).splitlines()[0]!r}; "
            "check that all ranks call hvd.init() and that no firewall stands between them"
        ) from None


def _serve(
    store: Store, size: int, about: dict[str, Any], local: bool, seconds: float
) -> tuple[dict[int, Channel], Roster]:
    token = secrets.token_hex(16)
    deadline = time.monotonic() + seconds
    with socket.create_server(("127.0.0.1" if local else "", 0), backlog=min(size, 1024)) as listener:
        addresses = ["127.0.0.1"] if local else network.reachable_addresses()
        store.set("control", json.dumps([addresses, listener.getsockname()[1], token]))
        connections: dict[int, socket.socket] = {}
        roster = [about] * size
        while len(connections) < size - 1:
            listener.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                missing = [rank for rank in range(1, size) if rank not in connections]
                raise OSError(f"no word from ranks {missing}") from None
            connection.settimeout(5)
            try:
                other, given, words = json.loads(_line(connection))
            except (OSError, ValueError):
                connection.close()
                continue
            if not secrets.compare_digest(str(given), token):
                connection.close()
                continue
            connections[other] = connection
            roster[other] = words
    answer = (json.dumps(roster) + "\n").encode()
    for connection in connections.values():
        connection.sendall(answer)
    return {rank: Channel(connection) for rank, connection in connections.items()}, roster


def _connect(
    store: Store, rank: int, about: dict[str, Any], local: bool, seconds: float
) -> tuple[dict[int, Channel], Roster]:
    addresses, port, token = json.loads(store.get("control"))
    deadline = time.monotonic() + seconds
    while True:
        for address in addresses:
            try:
                connection = socket.create_connection((address, port), timeout=2)
            except OSError:
                continue
            try:
                connection.sendall((json.dumps([rank, token, about]) + "\n").encode())
                connection.settimeout(max(0.1, deadline - time.monotonic()))
                roster = json.loads(_line(connection))
                return {0: Channel(connection)}, roster
            except (OSError, ValueError):
                connection.close()
        if time.monotonic() > deadline:
            raise OSError(f"rank 0 does not answer at {addresses}")
        time.sleep(0.05)


def _line(connection: socket.socket) -> bytes:
    data = bytearray()
    while not data.endswith(b"\n"):
        part = connection.recv(1) if len(data) < 1 else connection.recv(65536)
        if not part:
            raise OSError("closed")
        data += part
    return bytes(data)
