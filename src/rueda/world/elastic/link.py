"""The connection of a worker to the agent of its host, which passes messages between the worker and the driver.

Messages are lines of JSON. A thread of the worker reads them, so that the worker learns of a lost peer while its main
thread waits in a collective; nothing is polled.

===============  ==================================================================================================
worker to agent  meaning
===============  ==================================================================================================
``hello``        the member's number
``register``     this process can survive a failure of others
``join``         a fresh process asks for its first rank
``arrive``       a survivor asks for its rank in the next generation; ``failed``, ``step``, ``reason``
``failing``      an exception ends this process: its last line, the step, and whether a fresh one would fail as well
===============  ==================================================================================================

===============  ==================================================================================================
agent to worker  meaning
===============  ==================================================================================================
``assign``       the variables of a new generation, and how long to wait for its other members
``break``        a member of the present generation is gone
``update``       hosts have been removed (1) or added (2)
``dismiss``      the job goes on without this process
``give_up``      the job ends
===============  ==================================================================================================
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from rueda.errors import WorldError
from rueda.world import authentication
from rueda.world.authentication import job_key
from rueda.world.elastic import broken
from rueda.world.elastic.membership import MEMBER, PORT, generation, is_elastic

PURPOSE = "elastic"
ORPHAN_STATUS = 1  # of a process whose agent is gone
_CONNECT_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """This process's place in a new generation: its variables, and the seconds to wait for the other members."""

    generation: int
    variables: Mapping[str, str | None]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Farewell:
    """The job goes on without this process, or (``gives_up``) it ends."""

    why: str
    gives_up: bool


class Link:
    """The connection of this process; :func:`link` makes one."""

    def __init__(self, port: int, member: int, key: bytes, generation: int) -> None:
        connection = authentication.connect(["127.0.0.1"], port, key, PURPOSE, seconds=_CONNECT_SECONDS)
        if connection is None:
            raise WorldError(f"the agent of this elastic job does not answer on port {port}; it has probably ended")
        self._connection = connection
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._generation = generation
        self._answer: Assignment | Farewell | None = None
        self.updates = 0
        """hosts that were removed (1) or added (2) since the present generation was formed"""
        self.registered = False
        self.send(say="hello", member=member, pid=os.getpid())
        threading.Thread(target=self._listen, name="rueda elastic", daemon=True).start()

    def send(self, **message: Any) -> None:
        """Send a message; ignore an agent that is gone, since the other thread ends this process then."""
        with self._sending, contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def wait(self) -> Assignment | Farewell:
        """Wait for the answer to ``join`` or ``arrive``; the driver limits how long that takes."""
        with self._changed:
            while self._answer is None:
                self._changed.wait(1.0)  # Python handles signals in between
            answer, self._answer = self._answer, None
        return answer

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._connection.makefile("rb") as stream:
            for line in stream:
                self._on_message(json.loads(line))
        for output in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                output.flush()
        os._exit(ORPHAN_STATUS)  # the driver has given up this host, or nobody would end this process

    def _on_message(self, message: dict[str, Any]) -> None:
        what = message["do"]
        if what == "break":
            if message["generation"] == self._generation:
                broken.break_world(message["why"])
        elif what == "update":
            self.updates |= message["bits"]
        elif what == "assign":
            # In this thread, so that a later `break` finds the new generation.
            self._generation, self.updates = message["generation"], 0
            broken.mend()
            self._reply(Assignment(
                generation=message["generation"], variables=message["variables"], seconds=message["seconds"]
            ))  # fmt: skip
        elif what in ("dismiss", "give_up"):
            self._reply(Farewell(why=message["why"], gives_up=what == "give_up"))

    def _reply(self, answer: Assignment | Farewell) -> None:
        with self._changed:
            self._answer = answer
            self._changed.notify_all()


_link: Link | None = None


def link() -> Link:
    """Return the connection of this process, which is made on first use.

    Raises:
        WorldError: no elastic job started this process, or its agent is gone.
    """
    global _link
    if _link is None:
        if not is_elastic():
            raise WorldError(
                "this process does not belong to an elastic job; start it with `rueda run --min-np 1 --max-np 4 ...`"
            )
        _link = Link(int(os.environ[PORT]), int(os.environ[MEMBER]), job_key(os.environ), generation())
        _forget_after_fork()
    return _link


def opened() -> Link | None:
    """Return the connection of this process, if it was made."""
    return _link


@cache
def _forget_after_fork() -> None:
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    """A forked process, such as a worker of a data loader, is no member."""
    global _link
    _link = None
    for name in (MEMBER, PORT):
        os.environ.pop(name, None)
