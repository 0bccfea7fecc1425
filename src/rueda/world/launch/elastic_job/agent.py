"""The agent of one host in an elastic job: starts, stops and watches members, and passes on what they say.

It decides nothing, with two exceptions: when it hears nothing from the driver for the job's time-out, or the driver is
gone, it kills its members and ends, since the driver has given up this host by then; and a member that is stopped
(SIGSTOP) for that time is killed. It does not load torch.

Commands of the driver:

===========  =======================================================================================================
``connect``  where the store is; the agent opens a relay to it, and answers ``reached``
``store``    another port of the store, on the driver's own host
``spawn``    start a member with these variables
``tell``     pass a message on to members (:mod:`rueda.world.elastic.link`)
``kill``     stop a member by a signal, and kill it some seconds later
``own``      the address of this host that the others can reach, which decides the network interface of Gloo
``save``     pass the signal on by which programs save and go on
``stop``     stop all members, and end
``beat``     a sign of life
===========  =======================================================================================================
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO

from rueda.errors import LaunchError
from rueda.world import network
from rueda.world.authentication import KEY_VARIABLE, AuthenticatingListener
from rueda.world.elastic.link import PURPOSE
from rueda.world.elastic.membership import GENERATION, MEMBER, PENDING, PORT, SECONDS
from rueda.world.launch import addresses, environment
from rueda.world.launch.forwarding import OutputForwarder
from rueda.world.launch.processes import (
    ask,
    die_with_parent,
    reap_orphans,
    signal_tree,
    signal_worker,
    sweep,
)  # fmt: skip
from rueda.world.launch.protocol import STDERR, STDOUT, Message, Sender, read_message
from rueda.world.network import FIRST_ADDRESS
from rueda.world.relay import StoreRelay, reach
from rueda.world.signals import HANDLED, SAVING
from rueda.world.stall.stacks import process_state

_SWEEP_SECONDS = 2.0
_DRAIN_SECONDS = 0.5  # for the last lines of a member that has ended, before its end is reported
_READ_SECONDS = 0.2  # for what members have sent already, before the end of one of them is reported
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@dataclass(eq=False)
class _Member:
    """A process that this agent has started."""

    number: int
    process: subprocess.Popen[bytes]
    connection: socket.socket | None = None
    received: bytearray = field(default_factory=bytearray)
    outbox: list[Message] = field(default_factory=list)  # for a connection that is not open yet
    stopped_since: float | None = None
    killed: str = ""  # why this agent has killed it, if the driver did not ask for it
    ended_at: float | None = None
    told: bool = False


def serve_members(
    plan: Message, argv: list[str], variables: Mapping[str, str], commands: BinaryIO, sender: Sender
) -> None:
    """Serve the driver until it ends the job, or is gone.

    Args:
        plan: the driver's first message.
        argv: the command that each member executes.
        variables: what every member gets.
        commands: where the driver's commands come from.
        sender: the connection to the driver.
    """
    HostAgent(plan, argv, variables, sender).run(commands)


class HostAgent:
    """The loop of the agent; the arguments are those of :func:`serve_members`."""

    def __init__(self, plan: Message, argv: list[str], variables: Mapping[str, str], sender: Sender) -> None:
        self._argv = argv
        self._common = dict(variables)
        self._key: str = plan["key"]
        self._grace: float = plan["grace"]
        self._timeout: float = plan["timeout"]
        self._sender = sender
        self._forwarder = OutputForwarder(sender)
        self._forwarder.start()
        self._members: dict[int, _Member] = {}
        self._store_port = 0
        self._own: str | None = None
        self._first_address: str | None = None
        self._received: dict[int, float] = {}
        self._said: list[tuple[int, Message]] = []  # by members, not passed on yet
        self._inbox: queue.SimpleQueue[Message | Callable[[], None]] = queue.SimpleQueue()
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ, self._on_wake)
        listeners = network.listen(["127.0.0.1"])
        self._port: int = listeners[0].getsockname()[1]
        self._listener = AuthenticatingListener(
            listeners, self._key.encode(), PURPOSE, selector=self._selector, admit=self._admit
        )
        self._relay: StoreRelay | None = None
        self._stopping = False
        self._heard = self._beaten = time.monotonic()

    def run(self, commands: BinaryIO) -> None:
        """Run until all members have ended and the driver has said ``stop``."""
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (*HANDLED, signal.SIGQUIT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        threading.Thread(target=self._listen, args=(commands,), name="control", daemon=True).start()
        try:
            while not (self._stopping and all(member.told for member in self._members.values())):
                self._turn()
        finally:
            sweep((member.process.pid for member in self._members.values()), seconds=_SWEEP_SECONDS)
            self._forwarder.finish()

    # Events.

    def _listen(self, commands: BinaryIO) -> None:
        while (command := read_message(commands)) is not None:
            self._post(command)
        self._post(partial(self._on_silence, "the driver is gone"))

    def _post(self, event: Message | Callable[[], None]) -> None:
        self._inbox.put(event)
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def _on_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)

    def _turn(self) -> None:
        draining = any(member.ended_at is not None and not member.told for member in self._members.values())
        beat = self._timeout / 6
        for key, _ in self._selector.select(0.02 if draining else max(0.01, min(1.0, beat))):
            key.data()
        self._pass_on()
        with contextlib.suppress(queue.Empty):
            while True:
                event = self._inbox.get_nowait()
                if callable(event):
                    event()
                else:
                    self._heard = time.monotonic()
                    self._on_command(event)
        self._listener.close_expired()
        self._look_at_members()
        now = time.monotonic()
        if now - self._beaten >= beat:
            self._beaten = now
            self._sender.message(say="beat")
        if now - self._heard > self._timeout and not self._stopping:
            self._on_silence(f"the driver said nothing for {self._timeout:g} s")

    def _on_silence(self, why: str) -> None:
        """Kill the members: the driver has given up this host, or is gone, and others take their place."""
        if self._stopping:
            return
        if why == "the driver is gone":  # as in any job, they may save
            self._stop(signal.SIGTERM, self._grace)
        else:
            for member in self._members.values():
                if member.ended_at is None:
                    member.killed = f"since {why}"
            self._stop(signal.SIGKILL, 0.0)

    def _look_at_members(self) -> None:
        now = time.monotonic()
        for member in self._members.values():
            if member.told:
                continue
            if member.ended_at is None and member.process.poll() is not None:
                self._read_all()  # what others said before, such as that they survive this
                self._pass_on()
                member.ended_at = now
                signal_worker(member.process.pid, signal.SIGKILL)  # what it has left behind
            if member.ended_at is not None:
                if self._forwarder.is_drained(member.number) or now - member.ended_at > _DRAIN_SECONDS:
                    member.told = True
                    self._close(member)
                    self._sender.message(
                        say="ended", member=member.number, status=member.process.returncode, stopped=self._stopping,
                        killed=member.killed,
                    )  # fmt: skip
            elif process_state(member.process.pid) == "T":
                member.stopped_since = member.stopped_since or now
                if now - member.stopped_since > self._timeout:
                    member.killed = f"since it was stopped (SIGSTOP) for {self._timeout:g} s (--timeout)"
                    signal_worker(member.process.pid, signal.SIGKILL)
            else:
                member.stopped_since = None
        reap_orphans(member.process.pid for member in self._members.values() if not member.told)

    def _on_signal(self, number: int, frame: object) -> None:
        """Tell the driver of a signal to this process, such as the notice that a machine will be taken away."""
        self._received[number] = time.monotonic()
        if number != SAVING:
            self._post(lambda: self._sender.message(say="signalled", signal=number))

    # Commands.

    def _on_command(self, command: Message) -> None:
        what = command["do"]
        if what == "connect":
            if command["local"]:
                self._store_port = command["port"]
                self._sender.message(say="reached", address=None)
            else:
                threading.Thread(target=self._connect, args=(command,), daemon=True).start()
        elif what == "store":
            self._store_port = command["port"]
        elif what == "own":
            self._own = self._first_address = command["address"]
        elif what == "spawn":
            self._spawn(command)
        elif what == "tell":
            self._tell(command["members"], command["message"], command.get("several", False))
        elif what == "kill":
            self._kill(command["member"], command["signal"], command["seconds"])
        elif what == "save":
            if not self._is_received(command["signal"]):
                ask(self._running(), command["signal"])
        elif what == "stop":
            outside = command.get("from_outside", False) and self._is_received(command["signal"])
            self._stop(command["signal"], command["seconds"], later=command["seconds"] / 2 if outside else 0.0)

    def _connect(self, command: Message) -> None:
        """Find the way to the store, in a thread of its own, since that may take seconds."""
        offered = [*command["addresses"], *addresses.driver_address(os.environ)]
        found = reach(offered, command["port"], self._key.encode())
        if found is None:
            text = (
                f"this host cannot connect to the driver's host on port {command['port']} (tried "
                f"{', '.join(offered)}); allow connections between the hosts"
            )
            self._post(lambda: self._sender.message(say="unreachable", text=text))
            return
        first, own = found
        relay = StoreRelay(first, command["port"], self._key.encode())

        def use() -> None:
            self._first_address, self._own, self._relay, self._store_port = first, own, relay, relay.port
            self._sender.message(say="reached", address=first)

        self._post(use)

    def _variables(self, given: Mapping[str, Any], several: bool) -> dict[str, str | None]:
        """Return the variables of a member in a generation, in addition to those of this process."""
        local_size = int(given["LOCAL_WORLD_SIZE"])
        found: dict[str, str | None] = dict.fromkeys(_INTERFACES)
        if several:
            interface = addresses.interface_of(self._own) if self._own else None
            found["GLOO_SOCKET_IFNAME"] = interface
            if self._first_address:
                found[FIRST_ADDRESS] = self._first_address
            found["GLOO_ENABLE_STORE_V2_API"] = "1"
        else:
            loopback: dict[str, str] = {}
            network.stay_on_loopback(loopback)
            found |= loopback
        found = {name: value for name, value in found.items() if name not in os.environ}
        found |= environment.for_workers(os.environ, local_size)
        found |= {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._store_port), KEY_VARIABLE: self._key,
            PORT: str(self._port), SECONDS: f"{self._timeout:g}",
        }  # fmt: skip
        return {**found, **given}

    def _spawn(self, command: Message) -> None:
        number = command["member"]
        given = self._variables(command["variables"], command["several"])
        given[MEMBER] = str(number)
        env = {**os.environ, **self._common}
        for name, value in given.items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value
        writing = [self._forwarder.pipe(kind, number) for kind in (STDOUT, STDERR)]
        try:
            process = subprocess.Popen(
                self._argv, env=env, stdin=subprocess.DEVNULL, stdout=writing[0], stderr=writing[1],
                start_new_session=True, preexec_fn=die_with_parent,
            )  # fmt: skip
        except OSError as error:
            text = f"{self._argv[0]} cannot be started ({error.strerror}); check that it runs on its own"
            raise LaunchError(text) from error
        finally:
            for descriptor in writing:
                os.close(descriptor)
        self._members[number] = _Member(number, process)
        self._sender.message(say="spawned", member=number, pid=process.pid)

    def _kill(self, number: int, by: int, seconds: float) -> None:
        member = self._members.get(number)
        if member is None or member.ended_at is not None:
            return
        if by == signal.SIGKILL:
            signal_worker(member.process.pid, by)
            return
        if process_state(member.process.pid) == "T":
            signal_worker(member.process.pid, signal.SIGCONT)
        ask([member.process.pid], by)
        self._later(seconds, lambda: self._kill(number, signal.SIGKILL, 0.0))

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, lambda: self._post(action))
        timer.daemon = True
        timer.start()

    def _stop(self, number: int, seconds: float, *, later: float = 0.0) -> None:
        first, self._stopping = not self._stopping, True
        if number == signal.SIGKILL:
            self._kill_all()
            return
        if first:
            self._tell(list(self._members), {"do": "give_up", "why": "it is being stopped"})
            if later:
                self._later(later, lambda: self._ask_all(number))
            else:
                self._ask_all(number)
            self._later(seconds, self._kill_all)

    def _ask_all(self, number: int) -> None:
        ask(self._running(), number)

    def _kill_all(self) -> None:
        signal_tree(self._running(), signal.SIGKILL)

    def _running(self) -> list[int]:
        return [member.process.pid for member in self._members.values() if member.ended_at is None]

    def _is_received(self, number: int) -> bool:
        """Return whether a signal that the driver got has reached this process, and so perhaps all of the job."""
        return time.monotonic() - self._received.get(number, -1e9) < 1.0

    # The members' connections.

    def _admit(self, connection: socket.socket) -> None:
        received = bytearray()
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(connection, received))

    def _read(self, connection: socket.socket, received: bytearray) -> None:
        try:
            data = connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(connection)
            connection.close()
            for member in self._members.values():
                if member.connection is connection:
                    member.connection = None
            return
        received += data
        while (end := received.find(b"\n")) >= 0:
            line = bytes(received[:end])
            del received[: end + 1]
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self._on_said(connection, json.loads(line))

    def _read_all(self) -> None:
        """Read what members have sent until now, which may need several steps of a new connection."""
        until = time.monotonic() + _READ_SECONDS
        while time.monotonic() < until and (events := self._selector.select(0)):
            for key, _ in events:
                key.data()

    def _pass_on(self) -> None:
        """Tell the driver what members have said, in an order in which causes come first.

        A member arrives because another one fails, which has said so before, but on a connection of its own.
        """
        if any(message["say"] == "arrive" for _, message in self._said):
            self._read_all()
        said, self._said = self._said, []
        for number, message in sorted(said, key=lambda one: one[1]["say"] == "arrive"):
            self._sender.message(say="member", member=number, message=message)

    def _on_said(self, connection: socket.socket, message: Message) -> None:
        if message["say"] == "hello":
            member = self._members[message["member"]]
            if member.connection is None:  # a process that a member started knows its number, too
                member.connection = connection
                waiting, member.outbox = member.outbox, []
                for one in waiting:
                    self._send(member, one)
            return
        for member in self._members.values():
            if member.connection is connection:
                self._said.append((member.number, message))

    def _tell(self, numbers: list[int], message: Message, several: bool = False) -> None:
        for number in numbers:
            member = self._members.get(number)
            if member is None or member.ended_at is not None:
                continue
            own = message
            if message["do"] == "assign":
                variables = self._variables(message["variables"][str(number)], several)
                variables |= {GENERATION: str(message["generation"]), PENDING: None}
                own = {**message, "variables": variables}
            self._send(member, own)

    def _send(self, member: _Member, message: Message) -> None:
        if member.connection is None:
            member.outbox.append(message)
            return
        data = json.dumps(message).encode() + b"\n"
        try:
            member.connection.setblocking(True)
            member.connection.settimeout(5.0)
            member.connection.sendall(data)
            member.connection.setblocking(False)
        except OSError:  # it ends, or is stopped
            pass

    def _close(self, member: _Member) -> None:
        if member.connection is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(member.connection)
            member.connection.close()
            member.connection = None
