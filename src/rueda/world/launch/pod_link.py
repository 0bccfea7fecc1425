"""A command with the command line of ssh that runs a shell command in another pod (:mod:`rueda.world.launch.pod`).

Both sides prove that they know the job's key; afterwards the connection carries standard input and output. It is not
encrypted.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Sequence

from rueda.world import network
from rueda.world.authentication import connect, job_key
from rueda.world.launch.pod import PURPOSE, pod_port
from rueda.world.launch.protocol import encode
from rueda.world.launch.remote import destination

_CONNECT_SECONDS = 10.0
_CHUNK = 1 << 18
_NO_CONNECTION = 255  # as ssh


def main(words: Sequence[str]) -> int:
    """Run the command and return the exit status: 0 when the other side has closed the connection."""
    target = destination(words)
    if target.asks_for_settings:
        print("hostname", target.host)
        return 0
    port = pod_port(os.environ)
    connection = connect([target.host], port, job_key(os.environ), PURPOSE, seconds=_CONNECT_SECONDS)
    if connection is None:
        print(f"no pod with this job's key answers at {target.host}, port {port}", file=sys.stderr)
        return _NO_CONNECTION
    network.keep_alive(connection)
    with contextlib.suppress(OSError):
        connection.sendall(encode({"command": target.command}))
        threading.Thread(target=_send_input, args=(connection,), daemon=True).start()
        while data := connection.recv(_CHUNK):
            while data:
                data = data[os.write(1, data) :]
    return 0


def _send_input(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(0, _CHUNK):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)  # without waiting for the thread, which may block in its read
