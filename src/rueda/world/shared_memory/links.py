"""Connections between ranks on different hosts, each of which carries messages in both directions.

They are sockets of this module's own rather than a process group of Gloo: the thread that waits for a message also
reads it, straight to where it is needed, while a collective of Gloo wakes two threads on each side. No call here
blocks except :meth:`Links.wait`, so that a rank can send, receive and look at the shared memory of its host in turns.

A message has a header of two numbers: which collective it belongs to, and its *tag*. The receiver chooses by these
where the bytes go, or that they are not wanted yet: then they stay in the socket, and the sender waits.

Only a process that proves to know the job's key (:mod:`rueda.world.authentication`), and the token that the first rank
writes to the store of the group, can connect.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import selectors
import socket
import struct
import time
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple, Protocol

from torch.distributed.distributed_c10d import Store

from rueda.world import authentication, network
from rueda.world.authentication import AuthenticatingListener, derived_key
from rueda.world.rendezvous import known_key
from rueda.world.shared_memory.waiting import PeerGone

_PURPOSE = "link between hosts"
_HEADER = struct.Struct("<qq")
_NUMBER = struct.Struct("<q")
_MOST_SELECTED = 1024  # select.select knows only descriptors below this
_ATTEMPT_SECONDS = 5.0
_WAKE_BYTES = 1 << 17


class Header(NamedTuple):
    """What a message is: the number of its collective (``Operation.what``), and its tag."""

    what: int
    tag: int


class Mailbox(Protocol):
    """Where messages go to."""

    def destination(self, host: int, header: Header) -> memoryview | None:
        """Return the memory for the message of a host; None if there is none yet."""

    def arrived(self, host: int, header: Header) -> None:
        """Note that the message is there."""

    def sent(self, header: Header) -> None:
        """Note that the memory of a message, which this rank has sent, may be used again."""


class _Message(NamedTuple):
    header: Header
    parts: list[memoryview]  # what is not sent yet


class Link:
    """The connection with the rank of one host.

    Args:
        host: the number of the host.
        rank: the rank in the group, for messages to the user.
        connection: the socket.
    """

    def __init__(self, host: int, rank: int, connection: socket.socket) -> None:
        connection.setblocking(False)
        network.keep_alive(connection)
        self.host = host
        self.rank = rank
        self.connection = connection
        weakref.finalize(self, connection.close)  # not earlier: another thread may be waiting for it
        self.num_awaited = 0
        self._wake_bytes = 1
        self.outgoing: deque[_Message] = deque()
        self._header_bytes = bytearray(_HEADER.size)
        self._rest = memoryview(self._header_bytes)  # of the header, or of the message after it
        self._header: Header | None = None  # of the message that is being received
        self._waits = False  # for the memory of that message

    @property
    def reads(self) -> bool:
        """Whether something is expected that may be read now."""
        return self.num_awaited > 0 and not self._waits

    def resume(self) -> None:
        """Ask again for the memory of a message that had none."""
        self._waits = False

    def receive(self, mailbox: Mailbox) -> None:
        """Read as much as has arrived of the messages that are expected."""
        while self.num_awaited and not self._waits:
            if self._header is not None and not len(self._rest):
                header, self._header = self._header, None
                self._rest = memoryview(self._header_bytes)
                self.num_awaited -= 1
                mailbox.arrived(self.host, header)
                continue
            if self._header is None and not len(self._rest):
                header = Header._make(_HEADER.unpack(self._header_bytes))
                memory = mailbox.destination(self.host, header)
                if memory is None:
                    self._waits = True
                    return
                self._header, self._rest = header, memory
                continue
            try:
                num_bytes = self.connection.recv_into(self._rest)
            except BlockingIOError:
                self._wake_at(min(len(self._rest), _WAKE_BYTES))
                return
            except OSError:
                num_bytes = 0
            if not num_bytes:
                raise PeerGone(f"between hosts: rank {self.rank} of the group is gone")
            self._rest = self._rest[num_bytes:]

    def _wake_at(self, num_bytes: int) -> None:
        """Let a wait end only when this many bytes are there: a slow network would wake this rank for each packet."""
        if num_bytes != self._wake_bytes:
            self._wake_bytes = num_bytes
            with contextlib.suppress(OSError):  # not on every system
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, num_bytes)

    def send(self, mailbox: Mailbox) -> None:
        """Send as much as the socket takes."""
        while self.outgoing:
            header, parts = self.outgoing[0]
            try:
                num_bytes = self.connection.sendmsg(parts)
            except BlockingIOError:
                return
            except OSError:
                raise PeerGone(f"between hosts: rank {self.rank} of the group is gone") from None
            while parts and num_bytes >= len(parts[0]):
                num_bytes -= len(parts.pop(0))
            if parts:
                parts[0] = parts[0][num_bytes:]
            else:
                self.outgoing.popleft()
                mailbox.sent(header)


class Links:
    """The connections of this rank with its peers, one on each other host."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = {link.host: link for link in links}
        self._every = list(links)
        self._selectable = all(link.connection.fileno() < _MOST_SELECTED for link in links)

    def rank_of(self, host: int) -> int:
        """Return the rank in the group of the peer on a host."""
        return self._links[host].rank

    @property
    def active(self) -> bool:
        """Whether a message is expected or not yet sent."""
        return any(link.num_awaited or link.outgoing for link in self._every)

    def expect(self, hosts: Iterable[int]) -> None:
        """Expect one more message from each of these hosts."""
        for host in hosts:
            self._links[host].num_awaited += 1

    def send(self, host: int, header: Header, data: memoryview) -> None:
        """Begin to send a message; the memory must not be changed until it is sent."""
        self._links[host].outgoing.append(_Message(header, [memoryview(_HEADER.pack(*header)), data]))

    def resume(self) -> None:
        """Ask again for the memory of messages that had none."""
        for link in self._every:
            link.resume()

    def progress(self, mailbox: Mailbox) -> None:
        """Send and receive what is possible without waiting.

        Raises:
            PeerGone: a connection has been closed.
        """
        for link in self._every:
            if link.outgoing:
                link.send(mailbox)
            if link.num_awaited:
                link.receive(mailbox)

    def wait(self, seconds: float, woken_by: socket.socket) -> None:
        """Wait until :meth:`progress` can do something, or another socket can be read."""
        reads = [woken_by, *(link.connection for link in self._every if link.reads)]
        writes = [link.connection for link in self._every if link.outgoing]
        if self._selectable and woken_by.fileno() < _MOST_SELECTED:
            select.select(reads, writes, [], seconds)
        else:
            poll = select.poll()
            for connection in {*reads, *writes}:
                events = select.POLLIN * (connection in reads) | select.POLLOUT * (connection in writes)
                poll.register(connection, events)
            poll.poll(max(1.0, 1000 * seconds))

    def close(self) -> None:
        """End the connections: a thread of this rank, or of a peer, that waits for a message gets an error."""
        for link in self._every:
            try:
                link.connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # the other side has closed it
                continue


def connect_links(store: Store, host: int, ranks: Sequence[int], timeout: timedelta) -> Links:
    """Connect this rank with its peers: it connects to those on earlier hosts, and the later ones connect to it.

    Args:
        store: a store that is used for nothing else, the same for all of these ranks.
        host: the number of this rank's host.
        ranks: the ranks of all of them in the group, by host.
        timeout: how long to wait for the others.

    Raises:
        OSError: not all could be connected in time.
    """
    if host == 0:
        store.set("token", secrets.token_hex(16))
    store.wait(["token"], timeout)
    key = derived_key(known_key(), store.get("token").decode())
    deadline = time.monotonic() + timeout.total_seconds()
    connections: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        address = _own_address(os.environ)
        listener = socket.create_server((address, 0), backlog=len(ranks))
        port = listener.getsockname()[1]

        def admit(connection: socket.socket) -> None:
            """Learn from which host a connection comes: its first bytes."""
            data = bytearray()

            def read() -> None:
                try:
                    received = connection.recv(_NUMBER.size - len(data))
                except BlockingIOError:
                    return
                except OSError:
                    received = b""
                data.extend(received)
                if len(data) == _NUMBER.size:
                    connections[_NUMBER.unpack(data)[0]] = connection
                elif received:
                    return
                selector.unregister(connection)
                if not received:
                    connection.close()

            selector.register(connection, selectors.EVENT_READ, read)

        authenticating = AuthenticatingListener([listener], key, _PURPOSE, selector=selector, admit=admit)
        try:
            store.set(f"address/{host}", json.dumps([[address] if address else network.reachable_addresses(), port]))
            for other in range(host):
                connections[other] = _connect(store, other, key, host, deadline)
            while len(connections) < len(ranks) - 1:
                if time.monotonic() > deadline:
                    raise TimeoutError("not all hosts could be connected")
                for event, _ in selector.select(0.5):
                    event.data()
                authenticating.close_expired()
        finally:
            authenticating.close()
            authenticating.report()
    return Links([Link(other, ranks[other], connections[other]) for other in sorted(connections)])


def _connect(store: Store, other: int, key: bytes, host: int, deadline: float) -> socket.socket:
    store.wait([f"address/{other}"], timedelta(seconds=max(1.0, deadline - time.monotonic())))
    addresses, port = json.loads(store.get(f"address/{other}"))
    while time.monotonic() < deadline:
        connection = authentication.connect(addresses, port, key, _PURPOSE, seconds=_ATTEMPT_SECONDS)
        if connection is not None:
            connection.sendall(_NUMBER.pack(host))
            return connection
        time.sleep(0.05)
    raise TimeoutError(f"no answer at {', '.join(addresses)}, port {port}")


def _own_address(environ: Mapping[str, str]) -> str:
    """Return the address to listen at: that of Gloo's interface; empty, for all of them, if that is not known."""
    return network.interface_address(environ) or ""
