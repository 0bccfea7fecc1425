"""The control channel: one socket from every rank to rank 0, which carries requests, responses and small payloads.

It uses plain sockets rather than a process group for two reasons. The thread that waits for a message also reads it, so
a message takes 10 µs; a Gloo collective, which wakes two threads on each side, takes 120 µs. And the death of a rank is
noticed at once, because its socket closes.

Only a process that proves to know the job's key (:mod:`rueda.world.authentication`), and the token that rank 0 writes
to the store of this world, can connect; nothing that another process sends is deserialised.
"""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import secrets
import selectors
import socket
import struct
import time
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

from torch.distributed.distributed_c10d import Store

from rueda.errors import WorldError
from rueda.world import authentication, network
from rueda.world.authentication import AuthenticatingListener, derived_key, receive_exactly
from rueda.world.elastic.broken import on_break, raise_if_broken
from rueda.world.rendezvous import known_key

_PURPOSE = "control channel"
_LENGTH = struct.Struct("<I")
_FORMAT = 4  # a marshal version that all supported Python versions can read
Channels: TypeAlias = "dict[int, Channel]"


class Channel:
    """Sends and receives messages in order over a socket that never blocks; a full socket is retried later."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        network.keep_alive(connection)
        self.connection = connection
        self.closed = False
        self._incoming = bytearray()
        self._outgoing = bytearray()

    def fileno(self) -> int:
        """Return the file descriptor of the socket, for ``select.poll``."""
        return self.connection.fileno()

    @property
    def must_send(self) -> bool:
        """Whether a part of a message is still unsent because the socket was full."""
        return bool(self._outgoing)

    def send(self, frame: bytes) -> None:
        """Send a frame (see :func:`pack`) as far as the socket accepts it, and keep the rest for :meth:`flush`."""
        if not self.closed and not self._outgoing:
            frame = frame[self._send(frame) :]
        if not self.closed:
            self._outgoing += frame

    def flush(self) -> None:
        """Send what :meth:`send` has kept, as far as the socket accepts it."""
        while self._outgoing and (sent := self._send(self._outgoing)):
            del self._outgoing[:sent]

    def _send(self, data: bytes | bytearray) -> int:
        try:
            return self.connection.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            self.closed = True
            return 0

    def receive(self) -> list[Any]:
        """Return the messages that have arrived; ``closed`` is True once the other side has closed the connection."""
        try:
            data = b"" if self.closed else self.connection.recv(1 << 18)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.closed = True
            return []
        incoming = self._incoming
        if not incoming and len(data) >= 4 and len(data) - 4 == _length(data):
            return [marshal.loads(memoryview(data)[4:])]  # the usual case: exactly one message
        incoming += data
        messages = []
        start = 0
        while len(incoming) - start >= 4:
            end = start + 4 + _length(incoming, start)
            if end > len(incoming):
                break
            messages.append(marshal.loads(memoryview(incoming)[start + 4 : end].tobytes()))
            start = end
        del incoming[:start]
        return messages

    def close(self) -> None:
        """Close the socket."""
        self.closed = True
        self.connection.close()


def _length(data: bytes | bytearray, start: int = 0) -> int:
    """Return the number of bytes of the message in a frame."""
    length: int
    (length,) = _LENGTH.unpack_from(data, start)
    return length


def pack(message: Any) -> bytes:
    """Serialise a message of plain values (numbers, strings, bytes, tuples, lists, dicts) to a frame.

    >>> frame = pack((1, "a"))
    >>> frame[:4] == (len(frame) - 4).to_bytes(4, "little")
    True
    """
    data = marshal.dumps(message, _FORMAT)
    return _LENGTH.pack(len(data)) + data


def connect_channels(
    store: Store, rank: int, size: int, info: Any, *, local: bool, seconds: float
) -> tuple[Channels, list[Any]]:
    """Connect all ranks with rank 0, and give every rank the information about all workers.

    Args:
        store: a store, new for every world, in which rank 0 publishes its address and the token.
        rank: the rank of this worker.
        size: the number of workers.
        info: what the other workers shall know about this one, as plain values.
        local: whether all workers run on this machine.
        seconds: the time limit.

    Returns:
        On rank 0 a channel to every other rank, elsewhere the channel to rank 0; and ``info`` of all ranks in order.

    Raises:
        WorldError: not all ranks connected in time.
        PeerLost: one of them was lost meanwhile (a job that is elastic learns it from its launcher).
    """
    if size == 1:
        return {}, [info]
    try:
        return _accept(store, size, info, local, seconds) if rank == 0 else _connect(store, rank, info, seconds)
    except (OSError, RuntimeError) as error:
        raise WorldError(
            f"the control channel: expected {size} ranks within {seconds:g} s, got {str(error).splitlines()[0]!r}; "
            "check that all ranks call hvd.init() and that no firewall separates them"
        ) from None


def _accept(store: Store, size: int, info: Any, local: bool, seconds: float) -> tuple[Channels, list[Any]]:
    token = secrets.token_hex(16)
    address = "127.0.0.1" if local else network.chosen_address(os.environ) or ""
    deadline = time.monotonic() + seconds
    channels: Channels = {}
    all_info = [info] * size
    with selectors.DefaultSelector() as selector:

        def register(connection: socket.socket) -> None:
            channel = Channel(connection)
            selector.register(channel, selectors.EVENT_READ, lambda: introduce(channel))

        def introduce(channel: Channel) -> None:
            for rank, its_info in channel.receive():
                if rank in channels:  # it connected again, since the first answer came too late
                    channels[rank].close()
                channels[rank], all_info[rank] = channel, its_info
            if channel.closed or channel in channels.values():
                selector.unregister(channel)

        listener = socket.create_server((address, 0), backlog=min(size, 1024))
        port = listener.getsockname()[1]
        authenticating = AuthenticatingListener(
            [listener], derived_key(known_key(), token), _PURPOSE,
            selector=selector, admit=register, most_pending=size + 256,
        )  # fmt: skip
        try:
            store.set("control", json.dumps([[address] if address else network.reachable_addresses(), port, token]))
            while len(channels) < size - 1:
                raise_if_broken()
                if time.monotonic() > deadline:
                    missing = [rank for rank in range(1, size) if rank not in channels]
                    raise OSError(f"no connection from ranks {missing}")
                for key, _ in selector.select(min(1.0, max(0.0, deadline - time.monotonic()))):
                    key.data()
                authenticating.close_expired()
        except BaseException:
            for channel in channels.values():
                channel.close()
            raise
        finally:
            authenticating.close()
            authenticating.report()
    answer = pack(all_info)
    for channel in channels.values():
        channel.send(answer)
    return channels, all_info


def _shut_down(connection: socket.socket, _: str) -> None:
    connection.shutdown(socket.SHUT_RDWR)


def _connect(store: Store, rank: int, info: Any, seconds: float) -> tuple[Channels, list[Any]]:
    deadline = time.monotonic() + seconds
    while not store.check(["control"]):
        raise_if_broken()
        if time.monotonic() > deadline:
            raise OSError("no address of rank 0")
        with contextlib.suppress(RuntimeError):
            store.wait(["control"], timedelta(seconds=1))
    addresses, port, token = json.loads(store.get("control"))
    key = derived_key(known_key(), token)
    while time.monotonic() < deadline:
        raise_if_broken()
        connection = authentication.connect(addresses, port, key, _PURPOSE, seconds=5.0)
        if connection is not None:
            undo = on_break(partial(_shut_down, connection))
            try:
                connection.settimeout(max(0.1, deadline - time.monotonic()))
                connection.sendall(pack((rank, info)))
                # Exactly one message is read here: what follows belongs to the channel.
                length = _length(receive_exactly(connection, _LENGTH.size))
                all_info = marshal.loads(receive_exactly(connection, length))
                return {0: Channel(connection)}, all_info
            except OSError:
                connection.close()
            finally:
                undo()
        time.sleep(0.05)
    raise OSError(f"rank 0 does not answer at {addresses}")
