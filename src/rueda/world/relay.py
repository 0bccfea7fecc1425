"""An authenticated path to a TCPStore on another host.

A ``TCPStore`` answers everybody who connects: a stranger could list its keys, and by overwriting the address of a rank
make another rank connect to the stranger's machine and unpickle what it sends. So the store listens on the loopback
interface alone. On its host a :class:`StoreGateway` listens on the network, and forwards a connection to the store
after authentication (:mod:`rueda.world.authentication`). On every other host a :class:`StoreRelay` listens on the
loopback interface, and forwards each connection through an authenticated one to the gateway::

    worker ── 127.0.0.1 ── StoreRelay ══ network ══ StoreGateway ── 127.0.0.1 ── TCPStore

So programs for ``torch.distributed`` need no change: ``MASTER_ADDR`` is 127.0.0.1 on every host. The gateway and
each relay forward in a thread of their own.
"""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence

from rueda.world import network
from rueda.world.authentication import AuthenticatingListener, connect

_PURPOSE = "store"
_CHUNK = 1 << 18
_CONNECT_SECONDS = 30.0


class _End:
    """One of the two sockets of a forwarded connection, and the bytes that it could not take yet."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        network.keep_alive(connection)
        self.connection = connection
        self.other = self
        self.outgoing = bytearray()
        self.events = 0


class _Forwarder:
    """One thread that runs callbacks on sockets, and forwards bytes between pairs of sockets."""

    def __init__(self, name: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._woken, self._wake = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ, self._run_calls)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        while True:
            for key, events in self._selector.select(1.0):
                if isinstance(key.data, _End):
                    self._forward(key.data, events)
                else:
                    key.data()
            self._each_second()

    def _each_second(self) -> None:
        """Called at least once a second."""

    def _call(self, function: Callable[[], None]) -> None:
        """Call a function in the thread."""
        self._calls.put(function)
        self._wake.send(b"!")

    def _run_calls(self) -> None:
        self._woken.recv(4096)
        with contextlib.suppress(queue.Empty):
            while True:
                self._calls.get_nowait()()

    def _join(self, first: socket.socket, second: socket.socket) -> None:
        """Forward between two sockets until one of them is closed."""
        one, two = _End(first), _End(second)
        one.other, two.other = two, one
        self._watch(one)
        self._watch(two)

    def _watch(self, end: _End) -> None:
        """Read from a socket only while the other one takes the bytes, so that none pile up here."""
        events = 0 if end.other.outgoing else selectors.EVENT_READ
        if end.outgoing:
            events |= selectors.EVENT_WRITE
        if events != end.events:
            if end.events:
                self._selector.unregister(end.connection)
            if events:
                self._selector.register(end.connection, events, end)
            end.events = events

    def _forward(self, end: _End, events: int) -> None:
        if not end.events:  # closed by another event of the same select
            return
        try:
            if events & selectors.EVENT_WRITE:
                del end.outgoing[: end.connection.send(end.outgoing)]
            if events & selectors.EVENT_READ:
                data = end.connection.recv(_CHUNK)
                if not data:
                    raise ConnectionResetError
                sent = 0
                with contextlib.suppress(BlockingIOError):
                    sent = end.other.connection.send(data)
                if sent == len(data):
                    return
                end.other.outgoing += data[sent:]
        except BlockingIOError:
            pass
        except OSError:
            self._close(end)
            self._close(end.other)
            return
        self._watch(end)
        self._watch(end.other)

    def _close(self, end: _End) -> None:
        if end.events:
            self._selector.unregister(end.connection)
            end.events = 0
        end.connection.close()


class StoreGateway(_Forwarder):
    """Lets the other hosts of a job, and nobody else, reach a store that listens on this host's loopback interface.

    Args:
        store_port: the port of the store.
        key: the job's key.
        address: the own address on which to listen; empty for all.
        port: the port on which to listen; 0 for a free one.
    """

    def __init__(self, store_port: int, key: bytes, *, address: str = "", port: int = 0) -> None:
        super().__init__("store gateway")
        self._store_port = store_port
        listeners = network.listen([address], port)
        self.port: int = listeners[0].getsockname()[1]
        self._listener = AuthenticatingListener(listeners, key, _PURPOSE, selector=self._selector, admit=self._admit)
        self._thread.start()

    def listen_on(self, addresses: Sequence[str]) -> None:
        """Listen on these addresses alone, if all are this host's own: behind address translation they are not."""
        with contextlib.suppress(OSError):
            listeners = network.listen(addresses, self.port)
            self._call(lambda: self._listener.listen_on(listeners))

    def lead_to(self, store_port: int) -> None:
        """Lead connections that are made from now on to another store of this host."""
        self._store_port = store_port

    @property
    def refused(self) -> str | None:
        """A line for the user that tells how many connections were refused, or None."""
        return self._listener.refused()

    def _each_second(self) -> None:
        self._listener.close_expired()

    def _admit(self, connection: socket.socket) -> None:
        try:
            self._join(connection, socket.create_connection(("127.0.0.1", self._store_port)))
        except OSError:  # the store is closed
            connection.close()


class StoreRelay(_Forwarder):
    """Listens on the loopback interface for this host's workers, and forwards them to the gateway of another host.

    Args:
        address: the gateway's host.
        port: the gateway's port.
        key: the job's key.
    """

    def __init__(self, address: str, port: int, key: bytes) -> None:
        super().__init__("store relay")
        self._target = (address, port, key)
        self._accepting = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._accepting.getsockname()[1]
        self._selector.register(self._accepting, selectors.EVENT_READ, self._accept)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection = self._accepting.accept()[0]
            # In a thread of its own, since the gateway may be slow to answer.
            threading.Thread(target=self._connect, args=(connection,), name="store relay", daemon=True).start()

    def _connect(self, connection: socket.socket) -> None:
        address, port, key = self._target
        deadline = time.monotonic() + _CONNECT_SECONDS
        while (remote := connect([address], port, key, _PURPOSE, seconds=10.0)) is None:
            if time.monotonic() > deadline:
                connection.close()
                return
            time.sleep(0.05)
        found = remote
        self._call(lambda: self._join(connection, found))


def reach(addresses: Sequence[str], port: int, key: bytes) -> tuple[str, str] | None:
    """Return the first address at which a gateway answers, and this host's own address towards it; None without one."""
    connection = connect(addresses, port, key, _PURPOSE)
    if connection is None:
        return None
    with connection:
        return str(connection.getpeername()[0]), str(connection.getsockname()[0])
