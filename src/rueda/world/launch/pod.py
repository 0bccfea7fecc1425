"""What each pod of an elastic job on Kubernetes runs: the driver in pod 0, and a host for its agent in the others.

::

    python -m rueda.world.launch.pod \\
        rueda run --ssh "python -m rueda.world.launch.pod_link" -H train-0:4,train-1.train:4 --min-np 4 train.py

The manifest of ``rueda run --kubernetes --min-np N`` has this command for all pods of an Indexed Job. Pod 0 becomes the
driver. Every other pod listens for it: a connection that proves that it knows the job's key
(:mod:`rueda.world.authentication`) sends one shell command, which runs with the connection as its standard input and
output, as behind ssh, and becomes the agent of that pod.

========================  ==========================================================================================
what is lost              what follows
========================  ==========================================================================================
a pod                     its workers; the others go on. Kubernetes starts the pod again, and the driver finds it
pod 0                     the driver, and so all workers: the agents hear nothing any more. Kubernetes starts pod 0
                          again; its driver connects to the other pods, which were not restarted
a pod gets SIGTERM        the agent gets it: its workers leave at their next commit
========================  ==========================================================================================
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

from rueda.world import network
from rueda.world.authentication import AuthenticatingListener, job_key
from rueda.world.launch.processes import adopt_orphans, reap_orphans, signal_tree

PORT = 7117
PORT_VARIABLE = "RUEDA_POD_PORT"
PURPOSE = "pod"
_INDEX = "JOB_COMPLETION_INDEX"
_TURN_SECONDS = 0.5
_COMMAND_SECONDS = 5.0
_END_SECONDS = 10.0  # for an agent to end its workers once its connection is closed
_LONGEST_COMMAND = 1 << 20


def pod_port(environ: Mapping[str, str]) -> int:
    """Return the port on which pods wait for the driver.

    >>> pod_port({}), pod_port({"RUEDA_POD_PORT": "7000"})
    (7117, 7000)
    """
    return int(environ.get(PORT_VARIABLE, PORT))


class PodHost:
    """Runs the agent that the driver starts in this pod, one at a time.

    Args:
        key: the job's key.
        port: the port to listen on; 0 for a free one.
    """

    def __init__(self, key: bytes, port: int) -> None:
        self._selector = selectors.DefaultSelector()
        listeners = network.listen([""], port)
        self.port: int = listeners[0].getsockname()[1]
        self._listener = AuthenticatingListener(listeners, key, PURPOSE, selector=self._selector, admit=self._admit)
        self._agent: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._signal: int | None = None

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT has ended the agent; return the exit status."""
        adopt_orphans()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        while self._signal is None or self._agent is not None:
            for key, _ in self._selector.select(_TURN_SECONDS):
                key.data()
            self._listener.close_expired()
            if self._agent is not None and self._agent.poll() is not None:
                self._forget()
            reap_orphans({self._agent.pid} if self._agent is not None else set())
        self._listener.close()
        self._listener.report()
        return 128 + self._signal

    def _on_signal(self, number: int, _: object) -> None:
        """Pass a signal on to the agent, which tells the driver that this host leaves."""
        self._signal = number
        if self._agent is not None:
            with contextlib.suppress(ProcessLookupError):
                self._agent.send_signal(number)

    def _admit(self, connection: socket.socket) -> None:
        """Run the command of an authenticated connection; an earlier agent is ended first, since its driver is gone."""
        self._end()
        connection.settimeout(_COMMAND_SECONDS)
        try:
            command = _read_command(connection)
            peer, own = connection.getpeername(), connection.getsockname()
        except (OSError, ValueError):
            connection.close()
            return
        connection.settimeout(None)
        network.keep_alive(connection)
        ends = (peer[0], peer[1], own[0], own[1])
        told = " ".join(str(end).removeprefix("::ffff:") for end in ends)  # as sshd tells it
        self._agent = subprocess.Popen(
            ["/bin/sh", "-c", command], stdin=connection.fileno(), stdout=connection.fileno(),
            env={**os.environ, "SSH_CONNECTION": told}, start_new_session=True,
        )  # fmt: skip
        self._connection = connection

    def _end(self) -> None:
        if self._agent is None:
            return
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
        try:
            self._agent.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            signal_tree([self._agent.pid], signal.SIGKILL)
            self._agent.wait()
        self._forget()

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._agent = self._connection = None


def _read_command(connection: socket.socket) -> str:
    """Read the line ``{"command": ...}`` byte by byte: what follows it is for the command."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte or len(line) > _LONGEST_COMMAND:
            raise ValueError("no command")
        line += byte
    return str(json.loads(line)["command"])


def main(words: Sequence[str]) -> None:
    """Become the driver in pod 0; serve it in any other pod."""
    if int(os.environ.get(_INDEX, "0")) == 0:
        os.execvp(words[0], list(words))
    key = job_key(os.environ)
    if not key:
        sys.exit("rueda: RUEDA_JOB_KEY is not set; apply the Secret of the manifest of `rueda run --kubernetes`")
    raise SystemExit(PodHost(key, pod_port(os.environ)).run())


if __name__ == "__main__":
    main(sys.argv[1:])
