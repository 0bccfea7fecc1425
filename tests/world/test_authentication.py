"""Authenticated connections, and stores behind a gateway: who does not know the key is refused, counted, and soon."""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rueda.world import authentication
from rueda.world.authentication import AuthenticatingListener, connect, derived_key, prove
from rueda.world.network import listen
from rueda.world.relay import StoreGateway, StoreRelay, reach
from rueda.world.rendezvous import local_store, tcp_store

KEY = b"the job's key"


class Service:
    """Greets every authenticated client, in a thread."""

    def __init__(self, **options: Any) -> None:
        self.selector = selectors.DefaultSelector()
        listeners = listen(["127.0.0.1"])
        self.port = listeners[0].getsockname()[1]
        self.listener = AuthenticatingListener(
            listeners, KEY, "greeting", selector=self.selector, admit=self._greet, **options
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _greet(self, connection: socket.socket) -> None:
        with connection:
            connection.send(b"welcome")

    def _run(self) -> None:
        while not self._stopping.is_set():
            for key, _ in self.selector.select(0.02):
                key.data()
            self.listener.close_expired()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self.listener.close()
        self.selector.close()

    def welcomes(self, key: bytes = KEY, purpose: str = "greeting") -> bool:
        connection = connect(["127.0.0.1"], self.port, key, purpose)
        if connection is None:
            return False
        with connection:
            return connection.recv(99) == b"welcome"

    def connection(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(authentication, "_PROOF_SECONDS", 2.0)
    one = Service()
    yield one
    one.close()


def test_only_the_key_and_the_purpose_open(service: Service) -> None:
    assert service.welcomes()
    assert not service.welcomes(key=b"another key")
    assert not service.welcomes(key=b"")
    assert not service.welcomes(purpose="store")
    assert service.listener.num_refused == 3
    assert service.welcomes()
    assert derived_key(KEY, "a") not in (derived_key(KEY, "b"), derived_key(b"", "a"))


def recorded(service: Service) -> list[bytes]:
    """Record what a client of the job sends, as an eavesdropper on the network could."""
    near, far = socket.socketpair()
    with service.connection() as real, near, far:
        sent: list[bytes] = []

        def listen_in() -> None:
            far.sendall(real.recv(32))
            sent.append(far.recv(64))
            real.sendall(sent[0])
            far.sendall(real.recv(32))

        thread = threading.Thread(target=listen_in)
        thread.start()
        prove(near, KEY, "greeting")
        thread.join()
    return sent


def _junk(_: Service) -> bytes:
    return secrets.token_bytes(1000)


def _replayed(service: Service) -> bytes:
    return recorded(service)[0]


def _truncated(service: Service) -> bytes:
    return recorded(service)[0][:40]


@pytest.mark.parametrize("message", [_junk, _replayed, _truncated], ids=["junk", "replayed", "truncated"])
def test_messages_of_strangers(message: Callable[[Service], bytes], service: Service) -> None:
    sent = message(service)
    with service.connection() as stranger:
        assert len(stranger.recv(99)) == 32
        stranger.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(99) == b""
    assert service.listener.num_refused == 1
    assert service.welcomes()


def test_a_reflected_proof_is_refused(service: Service) -> None:
    """A client asks two challenges and answers one with the other's: the proofs of the two sides differ."""
    with service.connection() as one, service.connection() as two:
        challenge = one.recv(32)
        two.sendall(two.recv(32) + challenge)
        with contextlib.suppress(ConnectionResetError):
            assert two.recv(99) == b""


def test_a_server_without_the_key_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def impostor() -> None:
            connection = server.accept()[0]
            with connection:
                connection.sendall(bytes(32))
                proof = connection.recv(64)[32:]
                connection.sendall(proof)  # the only proof that it has

        thread = threading.Thread(target=impostor)
        thread.start()
        with socket.create_connection(server.getsockname()) as client, pytest.raises(PermissionError):
            prove(client, KEY, "greeting")
        thread.join()


def test_a_thousand_silent_connections_stop_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(most_pending=50)
    with contextlib.ExitStack() as strangers:
        for _ in range(300):
            strangers.enter_context(service.connection())
        assert service.welcomes()
        assert service.listener.num_refused >= 250
    service.close()
    assert service.listener.refused() is not None


def test_a_store_behind_a_gateway() -> None:
    store = local_store(20)
    gateway = StoreGateway(store.port, KEY)
    assert reach(["no-such-host.invalid", "127.0.0.1"], gateway.port, KEY) == ("127.0.0.1", "127.0.0.1")
    assert reach(["127.0.0.1"], gateway.port, b"another") is None
    relay = StoreRelay("127.0.0.1", gateway.port, KEY)
    far = tcp_store("127.0.0.1", relay.port, 20)
    store.set("a", "1")
    assert far.get("a") == b"1"
    far.set("large", bytes(range(256)) * 20_000)  # more than the buffers of the sockets
    assert store.get("large") == bytes(range(256)) * 20_000 == far.get("large")
    gateway.listen_on(["127.0.0.1"])  # from all addresses to one; established connections stay
    far.set("b", "2")
    assert tcp_store("127.0.0.1", relay.port, 20).get("b") == b"2"
    gateway.listen_on(["192.0.2.77"])  # not an own address: nothing changes
    assert tcp_store("127.0.0.1", relay.port, 20).get("b") == b"2"
    blocked = threading.Thread(target=lambda: far.wait(["late"]))
    blocked.start()  # one that waits holds up no other
    assert tcp_store("127.0.0.1", relay.port, 20).get("a") == b"1"
    store.set("late", "1")
    blocked.join(20)
    assert not blocked.is_alive()
    with socket.create_connection(("127.0.0.1", gateway.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 9)
    deadline = time.monotonic() + 20
    while gateway.refused is None or "refused 2 connections to the store" not in gateway.refused:
        assert time.monotonic() < deadline, gateway.refused
        time.sleep(0.01)
