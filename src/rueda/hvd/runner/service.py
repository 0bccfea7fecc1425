"""Where workers fetch the function that they shall run, and leave what it returned.

The driver listens; a worker connects twice, so that no connection has to outlive a long training. Both sides prove
by HMAC that they hold the job's key before a byte is unpickled (:mod:`multiprocessing.connection`); the key reaches
the workers in their environment, which travels inside ssh.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge

from rueda.errors import WorldError
from rueda.world.network import reachable_addresses

_PLACE, _KEY = "RUEDA_RUN_AT", "RUEDA_RUN_KEY"
_CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class Outcome:
    """What a worker left: the pickled result, or the text of its traceback and the last line of it."""

    rank: int
    result: bytes | None = None
    traceback: str = ""
    summary: str = ""


class Desk:
    """The driver's end: hands out one parcel, collects outcomes in the order in which they come."""

    def __init__(self, parcel: bytes, *, remote: bool) -> None:
        self._parcel = parcel
        self._key = secrets.token_bytes(32)
        self._socket = socket.create_server(("" if remote else "127.0.0.1", 0))
        self._addresses = ["127.0.0.1", *(reachable_addresses() if remote else [])]
        self.outcomes: list[Outcome] = []

    def __enter__(self) -> Desk:
        threading.Thread(target=self._accept, name="desk", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
        self._socket.close()

    @property
    def environment(self) -> dict[str, str]:
        """What a worker must know to find this place."""
        port = self._socket.getsockname()[1]
        return {_PLACE: f"{','.join(self._addresses)} {port}", _KEY: self._key.hex()}

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                link = self._socket.accept()[0]
                threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        # Whoever knocks without the key is sent away.
        with contextlib.suppress(OSError, EOFError, Exception), Connection(link.detach()) as connection:
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            wish = connection.recv()
            if isinstance(wish, Outcome):
                self.outcomes.append(wish)
            connection.send_bytes(self._parcel if wish == "parcel" else b"")


class Visitor:
    """The worker's end."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        addresses, _, port = environ[_PLACE].partition(" ")
        self._places = [(address, int(port)) for address in addresses.split(",")]
        self._key = bytes.fromhex(environ[_KEY])

    def fetch(self) -> bytes:
        """Get the parcel."""
        return self._ask("parcel")

    def leave(self, outcome: Outcome) -> None:
        """Hand in the outcome; it has arrived when this returns."""
        self._ask(outcome)

    def _ask(self, wish: object) -> bytes:
        for place in self._places:
            with contextlib.suppress(OSError):
                socket.create_connection(place, _CONNECT_SECONDS).close()  # Client has no timeout of its own
                with Client(place, authkey=self._key) as connection:
                    connection.send(wish)
                    return connection.recv_bytes()
        tried = ", ".join(f"{address} port {port}" for address, port in self._places)
        raise WorldError(f"the program that called run() cannot be reached (tried {tried}); let the hosts reach it")


def pack(function: bytes, *, path: list[str], main: str | None) -> bytes:
    """Make the parcel: the pickled call, where its modules lie, and the script that holds it if it is named there."""
    return pickle.dumps({"function": function, "path": path, "main": main, "directory": os.getcwd()})
