"""The connection between the program that calls ``run()`` and its workers: they fetch the function and return results.

The program listens; a worker connects twice, so that no connection has to stay open during a long training. Before any
byte is unpickled, both sides prove that they know the key of this call (:mod:`rueda.world.authentication`). The key
reaches the workers in their environment, which is sent inside ssh.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from rueda.errors import WorldError
from rueda.world.authentication import AuthenticatingListener, connect, new_key
from rueda.world.network import keep_alive, listen, own_address_towards, reachable_addresses

_ADDRESS, _KEY = "RUEDA_RUN_AT", "RUEDA_RUN_KEY"
_PURPOSE = "function server"
_CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class Outcome:
    """The end of a worker's call: the pickled result, or the text of its traceback and the last line of that."""

    rank: int
    result: bytes | None = None
    traceback: str = ""
    summary: str = ""


class FunctionServer:
    """Sends the pickled call to every worker, and collects the outcomes in the order in which they arrive.

    Args:
        call: the bytes that every worker receives.
        hosts: the other hosts whose workers must be able to connect; on each of them the first name that resolves here
            shows which network leads there.
    """

    def __init__(self, call: bytes, *, hosts: Sequence[Sequence[str]] = ()) -> None:
        self._call = call
        self._selector = selectors.DefaultSelector()
        self._ended, self._end = socket.socketpair()
        self._selector.register(self._ended, selectors.EVENT_READ)
        key, addresses = new_key(), ["127.0.0.1", *_addresses_towards(hosts)]
        listeners = listen([""] if "" in addresses else addresses)
        offered = ["127.0.0.1", *reachable_addresses()] if "" in addresses else addresses
        self.environment = {_ADDRESS: f"{','.join(offered)} {listeners[0].getsockname()[1]}", _KEY: key}
        """The variables by which a worker finds this server."""
        self._listener = AuthenticatingListener(
            listeners, key.encode(), _PURPOSE, selector=self._selector, admit=self._admit
        )
        self._thread = threading.Thread(target=self._accept, name="function server", daemon=True)
        self.outcomes: list[Outcome] = []

    def __enter__(self) -> FunctionServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()
        self._thread.join()
        self._listener.report()

    def _accept(self) -> None:
        with self._ended, self._selector, contextlib.closing(self._listener):
            while True:
                for key, _ in self._selector.select(1.0):
                    if key.fileobj is self._ended:
                        return
                    key.data()
                self._listener.close_expired()

    def _admit(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        keep_alive(connection)
        threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        with contextlib.suppress(Exception), Connection(link.detach()) as connection:  # a worker that was killed
            outcome = connection.recv()
            if outcome is not None:
                self.outcomes.append(outcome)
            connection.send_bytes(self._call if outcome is None else b"")


def _addresses_towards(hosts: Sequence[Sequence[str]]) -> list[str]:
    """Return this host's own addresses on the routes to some hosts; an empty one if a route is not known."""
    return [next(filter(None, map(own_address_towards, names)), "") for names in hosts]


def exchange(environ: Mapping[str, str], outcome: Outcome | None = None) -> bytes:
    """Deliver a worker's outcome to the server or, without one, fetch the call.

    Raises:
        WorldError: the server cannot be reached at any of its addresses.
    """
    addresses, _, port = environ[_ADDRESS].partition(" ")
    for _ in range(3):  # a connection can be lost while strangers press for theirs
        link = connect(addresses.split(","), int(port), environ[_KEY].encode(), _PURPOSE, seconds=_CONNECT_SECONDS)
        if link is not None:
            with Connection(link.detach()) as connection:
                connection.send(outcome)
                return connection.recv_bytes()
        time.sleep(0.5)
    raise WorldError(
        f"the program that called run() cannot be reached (tried {addresses}, port {port}); "
        "allow connections from the hosts to it"
    )
