"""The driver: one event loop over the agents of all hosts.

It decides: when all hosts have met, when a failure ends the job, what a signal means. Agents obey.

On a failure it waits a moment for workers whose own traceback has begun, so that the first can be told from those
that it pulled down, and then stops the rest: SIGTERM, and SIGKILL after ``STOP_SECONDS``.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from rueda.errors import LaunchError
from rueda.world.launch.failure import Failure, describe, first_of
from rueda.world.launch.hosts import Host
from rueda.world.launch.output import Output, Show
from rueda.world.launch.plan import LaunchPlan
from rueda.world.launch.processes import signal_group
from rueda.world.launch.remote import ssh_addresses, ssh_command, start_agent, why_no_agent
from rueda.world.launch.wire import MESSAGE, Message, Receiver, packet

STOP_SECONDS = 5.0
_GIVE_UP_SECONDS = 4.0  # beyond STOP_SECONDS, for an agent that does not answer
_SETTLE_SECONDS = 2.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(eq=False)
class _Agent:
    """The driver's view of one host."""

    index: int
    host: Host
    process: subprocess.Popen[bytes]
    receiver: Receiver = field(default_factory=Receiver)
    words: bytearray = field(default_factory=bytearray)  # the end of its standard error
    pids: list[int] = field(default_factory=list)
    reached: bool = False
    finished: bool = False
    done: bool = False

    def tell(self, **order: Any) -> None:
        """Send an order; an agent that has gone shows by the end of its output."""
        with contextlib.suppress(OSError, ValueError):
            assert self.process.stdin is not None
            self.process.stdin.write(packet(order))


def launch(plan: LaunchPlan, *, show: Show | None = None, failed: Callable[[Failure, str], None] | None = None) -> int:
    """Run a plan to its end and give the exit status: 0, the failing worker's, or 128 + n for signal n.

    Args:
        plan: what to run, and where.
        show: how to show what the workers write.
        failed: called with the first failure and the end of that worker's standard error, which by default are printed.

    Raises:
        LaunchError: a host, a program or a directory is not there; the message names it.
    """
    output = Output(show or Show(), workers=plan.workers)
    try:
        return _Driver(plan, output, failed).run()
    finally:
        output.close()


class _Driver:
    def __init__(self, plan: LaunchPlan, output: Output, failed: Callable[[Failure, str], None] | None = None) -> None:
        self._plan = plan
        self._failed = failed or (lambda failure, words: output.note(describe(failure, words)))
        self._output = output
        self._selector = selectors.DefaultSelector()
        self._agents: list[_Agent] = []
        self._running: set[int] = set()
        self._failures: list[Failure] = []
        self._settle_until: float | None = None
        self._give_up_at: float | None = None
        self._signal: int | None = None
        self._error: LaunchError | None = None
        self._lost: str | None = None
        self._broken_pipe = False
        self._warned = False
        self._notes: set[str] = set()

    def run(self) -> int:
        """Start, serve and end all agents."""
        with self._signals() as wake:
            self._selector.register(wake, selectors.EVENT_READ)
            try:
                self._start()
                while any(agent.process.returncode is None for agent in self._agents):
                    self._turn(wake)
            finally:
                self._abandon()
                self._selector.close()
        return self._result()

    # Phase 1: start every agent at once.

    def _start(self) -> None:
        run = secrets.token_hex(8)
        for index, host in enumerate(self._plan.hosts):
            agent = _Agent(index, host, start_agent(self._plan, host))
            self._agents.append(agent)
            for stream in (agent.process.stdout, agent.process.stderr):
                assert stream is not None
                self._selector.register(stream, selectors.EVENT_READ, agent)
            agent.tell(
                program=self._plan.program, module=self._plan.module, workers=host.slots,
                node=index, nodes=len(self._plan.hosts), run=run,
                packages=self._plan.additions.packages, limits_onednn=self._plan.limits_onednn,
                variables=self._plan.additions.of_host(self._plan.hosts, index),
            )  # fmt: skip

    # Phase 2: serve them.

    def _turn(self, wake: socket.socket) -> None:
        for key, _ in self._selector.select(self._patience()):
            if key.fileobj is wake:
                for number in wake.recv(64):
                    self._on_signal(number)
            else:
                self._read(key.data, key.fd)
        now = time.monotonic()
        if self._settle_until is not None and self._give_up_at is None:
            slow = self._running & {rank for rank, began in self._output.traceback_seconds.items() if began > now - 10}
            if now >= self._settle_until or not slow:
                self._stop(signal.SIGTERM)
        if self._give_up_at is not None and now >= self._give_up_at:
            self._abandon()

    def _patience(self) -> float | None:
        if self._give_up_at is not None:
            return max(0.0, self._give_up_at - time.monotonic())
        return 0.02 if self._settle_until is not None else None

    def _read(self, agent: _Agent, descriptor: int) -> None:
        data = os.read(descriptor, 1 << 18)
        assert agent.process.stdout is not None
        if descriptor != agent.process.stdout.fileno():
            agent.words += data
            del agent.words[:-8192]
            if not data:
                self._selector.unregister(descriptor)
        elif not data:
            self._selector.unregister(descriptor)
            self._on_end(agent)
        else:
            for kind, rank, body in agent.receiver.feed(data):
                if kind == MESSAGE:
                    self._on_message(agent, body)
                else:
                    self._show(kind, rank, body)

    def _show(self, kind: bytes, rank: int, body: bytes) -> None:
        try:
            if not self._broken_pipe:
                self._output.lines(kind, rank, body)
        except BrokenPipeError:  # the reader (head, less) has gone: nobody wants the rest
            self._broken_pipe = True
            with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), 1)  # what Python still holds must not fail again on the way out
            self._stop(signal.SIGTERM)
        except OSError as error:
            self._fail(f"the output cannot be written ({error.strerror}); make room, or choose another --output")

    def _on_message(self, agent: _Agent, body: bytes) -> None:
        message: Message = json.loads(body)
        name = message["say"]
        if name == "hello":
            self._warn_of_cores(agent.host, message["cores"])
        elif name == "note":
            if message["text"] not in self._notes:  # hosts of one kind say the same
                self._notes.add(message["text"])
                self._output.note(message["text"])
        elif name == "listening":
            addresses = list(message["addresses"])
            if not agent.host.is_local:
                addresses = [*ssh_addresses(self._plan, agent.host), *addresses]
            for other in self._agents[1:]:
                other.tell(do="meet", addresses=addresses, port=message["port"], driver=agent.host.is_local)
        elif name == "reached":
            agent.reached = True
            if all(other.reached for other in self._agents[1:]):
                self._agents[0].tell(do="begin", address=message["address"])
        elif name == "started":
            agent.pids = list(message["pids"].values())
            self._running |= {int(rank) for rank in message["pids"]}
        elif name == "ended":
            self._on_worker_end(agent, message["rank"], message["status"], message["stopped"])
        elif name == "finished":
            agent.finished = True
            if all(other.finished for other in self._agents):
                for other in self._agents:
                    other.tell(do="leave")
        elif name == "done":
            agent.done = True
        else:
            self._on_refusal(agent, message)

    def _on_worker_end(self, agent: _Agent, rank: int, status: int, stopped: bool) -> None:
        self._running.discard(rank)
        if status == 0 or stopped or self._give_up_at is not None:
            return
        now = time.monotonic()
        traceback = self._output.traceback_seconds.get(rank)
        self._failures.append(Failure(rank=rank, host=agent.host.name, status=status, ended=now, traceback=traceback))
        if self._settle_until is None:
            self._settle_until = now + _SETTLE_SECONDS

    def _on_refusal(self, agent: _Agent, message: Message) -> None:
        if message["say"] == "unreachable":
            first = self._plan.hosts[0].name
            tried = ", ".join(message["tried"])
            text = f"it cannot reach {first} on port {message['port']} (tried {tried}); let them reach each other"
        elif message["say"] == "broken":
            text = f"the agent failed ({message['text']})"
        else:
            text = message["text"]
        self._fail(text if agent.host.is_local else f"host {agent.host.name}: {text}")

    def _on_end(self, agent: _Agent) -> None:
        """Take leave of an agent whose output has ended."""
        try:
            status = agent.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            agent.process.kill()
            status = agent.process.wait()
        assert agent.process.stderr is not None
        os.set_blocking(agent.process.stderr.fileno(), False)
        with contextlib.suppress(BlockingIOError):
            agent.words += os.read(agent.process.stderr.fileno(), 8192)
        if agent.done or self._give_up_at is not None:
            return
        if agent.pids:
            self._kill_orphans(agent)
            last = agent.words.decode(errors="replace").strip().splitlines()[-1:] or [f"exit status {status}"]
            self._lost = f"the agent on {agent.host.name} was lost ({last[0]}); its workers are stopped"
            self._stop(signal.SIGTERM)
        else:
            self._fail(why_no_agent(self._plan, agent.host, status, agent.words.decode(errors="replace")))

    def _kill_orphans(self, agent: _Agent) -> None:
        if agent.host.is_local:
            for pid in agent.pids:
                signal_group(pid, signal.SIGKILL)
        else:
            command = shlex.join(["kill", "-s", "KILL", "--", *(f"-{pid}" for pid in agent.pids)])
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    ssh_command(self._plan, agent.host, command),
                    stdin=subprocess.DEVNULL, capture_output=True, timeout=STOP_SECONDS,
                )  # fmt: skip

    def _warn_of_cores(self, host: Host, cores: int) -> None:
        if host.slots > cores and not self._warned:
            self._warned = True
            where = "this host has" if host.is_local else f"{host.name} has"
            unit = "core" if cores == 1 else "cores"
            self._output.note(f"warning: {host.slots} workers, but {where} {cores} {unit}; they will take turns")

    # Phase 3: end them.

    def _on_signal(self, number: int) -> None:
        if number not in _SIGNALS:
            return
        if self._signal is None:
            self._signal = number
            self._stop(number)
        else:  # asked twice: at once
            self._stop(signal.SIGKILL, again=True)

    def _fail(self, text: str) -> None:
        if self._error is None and self._give_up_at is None:
            self._error = LaunchError(text)
            self._stop(signal.SIGTERM)

    def _stop(self, number: int, *, again: bool = False) -> None:
        if self._give_up_at is not None and not again:
            return
        self._give_up_at = time.monotonic() + STOP_SECONDS + _GIVE_UP_SECONDS
        for agent in self._agents:
            agent.tell(do="stop", signal=int(number), seconds=STOP_SECONDS)

    def _abandon(self) -> None:
        """End what is left of the agents themselves; closing their input stops their workers."""
        for agent in self._agents:
            for stream in (agent.process.stdin, agent.process.stdout, agent.process.stderr):
                if stream is not None and agent.process.returncode is not None:
                    stream.close()
        for agent in (agent for agent in self._agents if agent.process.returncode is None):
            for pid in agent.pids if agent.host.is_local else []:
                signal_group(pid, signal.SIGKILL)
            agent.process.kill()
            agent.process.wait()

    def _result(self) -> int:
        if self._error is not None:
            raise self._error
        if self._failures:
            failure = first_of(self._failures)
            self._failed(failure, self._output.last_words(failure.rank))
            return failure.exit_status
        if self._signal is not None:
            return 128 + self._signal
        if self._lost is not None:
            self._output.note(self._lost)
            return 1
        return 128 + signal.SIGPIPE if self._broken_pipe else 0

    @contextlib.contextmanager
    def _signals(self) -> Any:
        """Turn signals into bytes that the loop reads."""
        receiving, sending = socket.socketpair()
        receiving.setblocking(False)
        sending.setblocking(False)
        if threading.current_thread() is not threading.main_thread():
            yield receiving
            return
        before: dict[int, Any] = {}
        wakeup = signal.set_wakeup_fd(sending.fileno(), warn_on_full_buffer=False)
        for number in (int(one) for one in _SIGNALS):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a shell's background job
                before[number] = signal.signal(number, _noted)
        try:
            yield receiving
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup)
            receiving.close()
            sending.close()


def _noted(number: int, frame: FrameType | None) -> None:
    """Do nothing here: the loop has been woken with the number."""
