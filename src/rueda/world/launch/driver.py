"""The driver: one event loop over the agents of all hosts.

The driver decides when the rendezvous of the hosts is complete, when a failure ends the job, and what a signal means;
the agents carry out its commands.

After a failure it waits up to ``_TRACEBACK_SECONDS`` for workers that are still writing a traceback, so that the first
failure can be distinguished from those that it caused. Then it stops the rest: SIGTERM, and SIGKILL after
``STOP_SECONDS``, since workers that wait for the failed one cannot save.

A signal to the driver is passed on to the workers, which have the plan's ``grace`` seconds to save
(:mod:`rueda.world.signals`). The workers' output is written by a thread (:mod:`.stream_writer`), so that the driver
hears a signal while the reader of the output stalls.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import selectors
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from rueda.errors import LaunchError
from rueda.world.authentication import new_key
from rueda.world.cores import usable_cores
from rueda.world.launch.failure import Failure, describe, first_of
from rueda.world.launch.failure import exit_status as job_status
from rueda.world.launch.grace import time_to_save
from rueda.world.launch.hosts import Host
from rueda.world.launch.output import Output, OutputOptions
from rueda.world.launch.plan import LaunchPlan
from rueda.world.launch.processes import signal_group
from rueda.world.launch.protocol import MESSAGE, Message, Receiver, encode
from rueda.world.launch.remote import ssh_addresses, ssh_command, start_agent, why_no_agent
from rueda.world.rank_names import name_ranks
from rueda.world.signals import HANDLED, SAVING, Request, SignalFilter, exit_status

STOP_SECONDS = 5.0
_GIVE_UP_SECONDS = 4.0  # beyond STOP_SECONDS, for an agent that does not respond
_TRACEBACK_SECONDS = 2.0
_DRAIN_SECONDS = 1.0  # for the reader of the output, once a signal has stopped the job
_LEFT_SECONDS = 60.0  # after which a worker that left before the others is named
MOST_WORKERS = 4096
"""the most workers on one host; more than any host can run, and fewer than a mistyped number"""
MOST_PER_CORE = 100
"""the most workers for each core of this host: a mistyped number must not fill its memory with processes"""


@dataclass(eq=False)
class Agent:
    """The driver's view of the agent of one host."""

    host: Host
    process: subprocess.Popen[bytes]
    receiver: Receiver = field(default_factory=Receiver)
    stderr: bytearray = field(default_factory=bytearray)  # the end of its standard error
    pids: list[int] = field(default_factory=list)
    said: set[str] = field(default_factory=set)  # the kinds of messages that it has sent

    def send(self, **command: Any) -> None:
        """Send a command; ignore an agent that has ended, since the end of its output shows that."""
        with contextlib.suppress(OSError, ValueError):
            assert self.process.stdin is not None
            self.process.stdin.write(encode(command))


def launch(
    plan: LaunchPlan, *, output: OutputOptions | None = None, failed: Callable[[Failure, str], None] | None = None
) -> int:
    """Run a plan to its end and return the exit status: 0, the failing worker's, or 128 + n for signal n.

    Args:
        plan: the program and the hosts.
        output: how the workers' output is shown.
        failed: called with the first failure and the end of that worker's standard error; by default they are printed.

    Raises:
        LaunchError: a host, a program or a directory does not exist; the message names it.
    """
    for host in plan.hosts:
        most = min(MOST_WORKERS, MOST_PER_CORE * usable_cores()) if host.is_local else MOST_WORKERS
        if host.slots > most:
            expected = f"at most {most:,} workers on {'this' if host.is_local else 'one'} host"
            raise LaunchError("-np", expected=expected, got=host.slots, do="correct it, or add hosts with -H")
    if plan.elastic is not None:
        from rueda.world.launch.elastic_job.driver import ElasticDriver

        return ElasticDriver(plan, output or OutputOptions(), failed).run()
    return Driver(plan, output or OutputOptions(), failed).run()


class Driver:
    """The event loop, and what the driver of a job with a fixed number of workers does.

    Args:
        plan: the program and the hosts.
        output: how the workers' output is shown.
        failed: see :func:`launch`.
    """

    def __init__(
        self, plan: LaunchPlan, output: OutputOptions, failed: Callable[[Failure, str], None] | None = None
    ) -> None:
        self._plan = plan
        self._output = Output(output, workers=plan.workers, changed=self._wake_up, rank_of=self._rank_of)
        self._wake, self._waker = socket.socketpair()  # a byte is the number of a signal, or 0 from the output
        self._wake.setblocking(False)
        self._waker.setblocking(False)
        self._failed = failed or (lambda failure, stderr: self._output.note(describe(failure, stderr)))
        self._selector = selectors.DefaultSelector()
        self._agents: list[Agent] = []
        self._running: set[int] = set()
        self._left: dict[int, float] = {}  # by rank: when it ended with status 0
        self._failures: list[Failure] = []
        self._traceback_deadline: float | None = None  # set by the first failure
        self._grace = plan.grace
        self._kill_at: float | None = None  # when the agents kill the workers that still save after a signal
        self._give_up_at: float | None = None  # set once the job is being stopped
        self._signals = SignalFilter()
        self._signal: int | None = None
        self._error: LaunchError | None = None
        self._lost: str | None = None
        self._lost_status = 1
        self._paused = False
        self._has_seen_error = False
        self._broken_pipe = False
        self._warned = False
        self._notes: set[str] = set()
        self._reached: list[str] = []  # the addresses by which the other hosts reach the first one

    def run(self) -> int:
        """Run all agents to their end, and return the exit status once their output has been taken."""
        with self._wake, self._waker, self._handled_signals():
            self._selector.register(self._wake, selectors.EVENT_READ)
            try:
                try:
                    self._start()
                    while self._is_running():
                        self._process_events()
                finally:
                    self._kill_agents()
                return self._result()
            finally:
                self._drain()
                self._selector.close()

    def _is_running(self) -> bool:
        return any(agent.process.returncode is None for agent in self._agents)

    def _rank_of(self, number: int) -> int:
        """Return the rank of the worker that an agent calls by a number: here the rank itself."""
        return number

    def _ranks(self, numbers: Iterable[int]) -> str:
        return name_ranks({self._rank_of(number) for number in numbers})

    def _drain(self) -> None:
        """Wait until the reader of the output has taken it; after a signal only for a moment."""
        until: float | None = None
        while self._output.num_waiting and (until is None or time.monotonic() < until):
            if self._signal is not None and until is None:
                until = time.monotonic() + _DRAIN_SECONDS
            for _ in self._selector.select(0.1 if until is not None else None):
                self._read_wake()
        self._output.close(wait=False)

    def _wake_up(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # full, so that it wakes anyhow; or closed, or not yet open
            self._waker.send(b"\0")

    def _read_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in self._wake.recv(64):
                self._on_signal(number)

    # Phase 1: start all agents.

    def _start(self) -> None:
        run, key = secrets.token_hex(8), new_key()
        for index, host in enumerate(self._plan.hosts):
            agent = self._start_agent(host)
            agent.send(
                program=self._plan.program, module=self._plan.module, workers=host.slots,
                node=index, nodes=len(self._plan.hosts), run=run, key=key, grace=self._plan.grace,
                packages=self._plan.additions.packages, limits_onednn=self._plan.limits_onednn,
                variables=self._plan.additions.of_host(self._plan.hosts, index),
            )  # fmt: skip

    def _start_agent(self, host: Host) -> Agent:
        agent = Agent(host, start_agent(self._plan, host))
        self._agents.append(agent)
        for stream in (agent.process.stdout, agent.process.stderr):
            assert stream is not None
            if stream is agent.process.stderr or not self._paused:
                self._selector.register(stream, selectors.EVENT_READ, agent)
        return agent

    # Phase 2: process their messages, output and ends.

    def _process_events(self) -> None:
        for key, _ in self._selector.select(self._timeout()):
            if key.fileobj is self._wake:
                self._read_wake()
            else:
                self._read(key.data, key.fd)
        if (error := self._output.error) is not None and not self._has_seen_error:
            self._has_seen_error = True
            self._on_output_error(error)
        self._pause(self._output.is_behind and self._give_up_at is None)
        self._advance(time.monotonic())

    def _advance(self, now: float) -> None:
        """Do what is due at this time."""
        if self._traceback_deadline is not None and self._give_up_at is None:
            recent = {rank for rank, began in self._output.traceback_seconds.items() if began > now - 10}
            if now >= self._traceback_deadline or not self._running & recent:
                self._traceback_deadline = None
                self._on_failures()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            if self._running and self._signal is not None:
                name = signal.Signals(self._signal).name
                self._output.note(
                    f"{self._ranks(self._running)} had not ended {self._grace:g} s after {name} and "
                    f"{'was' if len(self._running) == 1 else 'were'} killed; give more time with --grace"
                )
        if self._left and self._running and now >= min(self._left.values()) + _LEFT_SECONDS:
            self._output.note(
                f"{self._ranks(self._left)} left with exit status 0; {self._ranks(self._running)} still running"
            )
            self._left = dict.fromkeys(self._left, math.inf)  # told once
        if self._give_up_at is not None and now >= self._give_up_at:
            self._kill_agents()

    def _on_failures(self) -> None:
        """End the job, once the workers that failed have written their tracebacks."""
        self._stop(signal.SIGTERM, STOP_SECONDS)

    def _timeout(self) -> float | None:
        if self._traceback_deadline is not None and self._give_up_at is None:
            return 0.02
        at = [moment for moment in self._moments() if moment < math.inf]
        return max(0.0, min(at) - time.monotonic()) if at else None

    def _moments(self) -> list[float]:
        """Return when something is due."""
        at = [moment for moment in (self._kill_at, self._give_up_at) if moment is not None]
        if self._left and self._running:
            at.append(min(self._left.values()) + _LEFT_SECONDS)
        return at

    def _pause(self, pause: bool) -> None:
        """Stop reading the workers' output while its reader is behind, or read on."""
        if pause == self._paused:
            return
        self._paused = pause
        for agent in self._agents:
            assert agent.process.stdout is not None
            if agent.process.returncode is None:
                if pause:
                    self._selector.unregister(agent.process.stdout)
                else:
                    self._selector.register(agent.process.stdout, selectors.EVENT_READ, agent)

    def _read(self, agent: Agent, descriptor: int) -> None:
        data = os.read(descriptor, 1 << 18)
        if not data:
            self._selector.unregister(descriptor)
        assert agent.process.stdout is not None
        if descriptor != agent.process.stdout.fileno():
            agent.stderr += data
            del agent.stderr[:-8192]
        elif not data:
            self._on_end(agent)
        else:
            for kind, rank, body in agent.receiver.feed(data):
                if kind == MESSAGE:
                    self._on_message(agent, json.loads(body))
                else:
                    self._show(kind, rank, body)

    def _show(self, kind: bytes, rank: int, lines: bytes) -> None:
        try:
            self._output.write(kind, rank, lines)
        except OSError as error:
            self._on_output_error(error)

    def _on_output_error(self, error: OSError) -> None:
        if isinstance(error, BrokenPipeError):  # the reader of the output (head, less) has exited
            self._broken_pipe = True
            with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), 1)  # so that Python's flush at exit does not fail again
            self._stop(signal.SIGTERM, self._plan.grace)
        else:
            self._fail(f"the output cannot be written ({error.strerror}); free some space, or choose another --output")

    def _on_message(self, agent: Agent, message: Message) -> None:
        name = message["say"]
        agent.said.add(name)
        if name == "hello":
            self._warn_of_cores(agent.host, message["cores"])
        elif name == "note":
            if message["text"] not in self._notes:  # hosts of the same kind send the same note
                self._notes.add(message["text"])
                self._output.note(message["text"])
        elif name == "listening":
            addresses = list(message["addresses"])
            if not agent.host.is_local:
                addresses = [*ssh_addresses(self._plan, agent.host), *addresses]
            for other in self._agents[1:]:
                other.send(
                    do="connect", name=agent.host.name, addresses=addresses, port=message["port"],
                    driver=agent.host.is_local,
                )  # fmt: skip
        elif name == "reached":
            self._reached.append(message["address"])
            if len(self._reached) == len(self._agents) - 1:
                self._agents[0].send(do="begin", addresses=self._reached)
        elif name == "started":
            agent.pids = list(message["pids"].values())
            self._running |= {int(rank) for rank in message["pids"]}
        elif name == "ended":
            self._on_worker_end(agent, message["rank"], message["status"], message["stopped"])
        elif name == "finished":
            if all(name in other.said for other in self._agents):
                for other in self._agents:
                    other.send(do="leave")
        elif name == "signalled":
            self._on_signal(message["signal"])
        elif name == "refused":
            self._fail(message["text"] if agent.host.is_local else f"host {agent.host.name}: {message['text']}")

    def _on_worker_end(self, agent: Agent, rank: int, status: int, stopped: bool) -> None:
        self._running.discard(rank)
        now = time.monotonic()
        if stopped or self._give_up_at is not None:
            return
        if status == 0:
            self._left[rank] = now
            return
        traceback, left = self._output.traceback_seconds.get(rank), tuple(self._left)
        self._failures.append(
            Failure(rank=rank, host=agent.host.name, status=status, ended=now, traceback=traceback, left=left)
        )
        if self._traceback_deadline is None:
            self._traceback_deadline = now + _TRACEBACK_SECONDS

    def _on_end(self, agent: Agent) -> None:
        """Collect an agent whose output has ended, and find out why if it had not finished."""
        try:
            status = agent.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            agent.process.kill()
            status = agent.process.wait()
        self._read_rest(agent)
        if "done" in agent.said or self._give_up_at is not None:
            return
        stderr = agent.stderr.decode(errors="replace")
        if agent.pids:
            self._kill_orphans(agent)
            last = stderr.strip().splitlines()[-1:] or [f"exit status {status}"]
            self._lost = f"the agent on {agent.host.name} ended unexpectedly ({last[0]}); its workers are stopped"
            self._stop(signal.SIGTERM, STOP_SECONDS)
        else:
            self._fail(why_no_agent(self._plan, agent.host, status, stderr))

    @staticmethod
    def _read_rest(agent: Agent) -> None:
        """Read what an agent that has ended left on its standard error."""
        assert agent.process.stderr is not None
        os.set_blocking(agent.process.stderr.fileno(), False)
        with contextlib.suppress(BlockingIOError):
            agent.stderr += os.read(agent.process.stderr.fileno(), 8192)

    def _kill_orphans(self, agent: Agent) -> None:
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
            self._output.note(f"warning: {host.slots} workers, but {where} {cores} {unit}, which they share")

    # Phase 3: stop them.

    def _tell_of_stopped_agents(self) -> None:
        """Report an agent, or its ssh, that was stopped (SIGSTOP) or goes on: meanwhile the job seems to hang."""
        for agent in self._agents if hasattr(os, "waitid") else []:  # a Mac has it from Python 3.13 on
            pid = agent.process.pid
            with contextlib.suppress(ChildProcessError):
                found = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
                if found is not None and found.si_code == os.CLD_CONTINUED:
                    self._output.note(f"the agent of {agent.host.name} goes on")
                elif found is not None:
                    self._output.note(
                        f"the agent of {agent.host.name} (process {pid}) is stopped: the output of its workers is not "
                        f"shown; `kill -CONT {pid}` lets it go on"
                    )

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._tell_of_stopped_agents()
        if number not in (*HANDLED, signal.SIGQUIT):
            return
        request = self._signals.request(number)
        if request is Request.SAVE:
            for agent in self._agents:
                agent.send(do="save", signal=number)
        elif request is Request.STOP:
            self._signal = number
            self._stop(number, time_to_save(number, os.environ, self._plan.grace), from_outside=True)
        elif request is Request.END:
            self._stop(signal.SIGKILL, STOP_SECONDS, again=True)

    def _fail(self, text: str) -> None:
        if self._error is None and self._give_up_at is None:
            self._error = LaunchError(text)
            self._stop(signal.SIGTERM, self._plan.grace)

    def _stop(self, number: int, seconds: float, *, from_outside: bool = False, again: bool = False) -> None:
        """Let the agents stop their workers, which have ``seconds`` to save; later calls need ``again``."""
        if self._give_up_at is not None and not again:
            return
        self._grace, self._kill_at = seconds, time.monotonic() + seconds
        self._give_up_at = self._kill_at + _GIVE_UP_SECONDS
        self._output.drops_when_behind = True
        for agent in self._agents:
            if agent.host.is_local and agent.process.returncode is None:
                agent.process.send_signal(signal.SIGCONT)  # one that is stopped could not pass the signal on
            agent.send(do="stop", signal=int(number), seconds=seconds, from_outside=from_outside)

    def _kill_agents(self) -> None:
        """Kill the agents that still run, and close the pipes of all; the end of its input makes an agent stop."""
        for agent in self._agents:
            if agent.process.returncode is None:
                for pid in agent.pids if agent.host.is_local else []:
                    signal_group(pid, signal.SIGKILL)
                agent.process.kill()
            with agent.process:  # on exit it closes the pipes and waits
                pass

    def _result(self) -> int:
        if self._output.num_dropped:
            self._output.note(f"{self._output.num_dropped:,} lines were not shown: the reader of the output stalled")
        if self._error is not None:
            raise self._error
        if self._failures:
            failure = first_of(self._failures)
            stderr = self._output.stderr_tail(failure.rank if failure.number is None else failure.number)
            self._failed(failure, stderr)
            return job_status(failure, stderr)
        if self._signal is not None:
            return exit_status(self._signal)
        if self._lost is not None:
            self._output.note(self._lost)
            return self._lost_status
        return exit_status(signal.SIGPIPE) if self._broken_pipe else 0

    @contextlib.contextmanager
    def _handled_signals(self) -> Iterator[None]:
        """Turn signals into bytes on a socket, which the event loop reads."""
        with contextlib.ExitStack() as restore:
            if threading.current_thread() is threading.main_thread():
                wakeup = signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
                restore.callback(signal.set_wakeup_fd, wakeup)
                if signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL:  # a program's own handler wakes the loop as well
                    restore.callback(signal.signal, signal.SIGCHLD, signal.signal(signal.SIGCHLD, _ignore))
                for number in HANDLED:
                    # SIGINT and SIGHUP may be ignored, by nohup or in the background of a script.
                    if number == SAVING or signal.getsignal(number) is not signal.SIG_IGN:
                        restore.callback(signal.signal, number, signal.signal(number, _ignore))
            yield


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing: the event loop receives the signal's number through the socket."""
