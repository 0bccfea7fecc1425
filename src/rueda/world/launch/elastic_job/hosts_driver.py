"""The hosts of an elastic job: how their agents are started, found again when they are lost, and led to the store."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from rueda.world.authentication import new_key
from rueda.world.launch.driver import Agent, Driver
from rueda.world.launch.elastic_job.discovery import Discovery
from rueda.world.launch.elastic_job.hosts_state import HostPhase, HostState
from rueda.world.launch.elastic_job.settings import ElasticSettings
from rueda.world.launch.failure import Failure
from rueda.world.launch.hosts import Host
from rueda.world.launch.output import OutputOptions
from rueda.world.launch.plan import LaunchPlan
from rueda.world.launch.protocol import Message

_HELLO_SECONDS = 30.0  # for ssh and Python to start an agent


class HostsDriver(Driver):
    """Keeps the hosts of an elastic job; its subclass decides what workers do there.

    The arguments are those of :class:`Driver`.
    """

    def __init__(
        self, plan: LaunchPlan, output: OutputOptions, failed: Callable[[Failure, str], None] | None = None
    ) -> None:
        assert plan.elastic is not None
        self._settings: ElasticSettings = plan.elastic
        derived = self._settings.worker_variables({**os.environ, **plan.environment})
        seconds = max(1, min(15, int(self._settings.timeout)))
        plan = replace(
            plan, environment={**derived, **plan.environment}, ssh=(*plan.ssh, "-o", f"ConnectTimeout={seconds}")
        )
        super().__init__(plan, output, failed)
        self._run_id, self._key = secrets.token_hex(8), new_key()
        self._hosts: dict[str, HostState] = {}
        self._has_hosts = False
        self._generation = -1  # none was formed yet
        self._store: Agent | None = None
        self._store_port: int | None = None
        self._gateway: tuple[list[str], int] | None = None  # how other hosts reach the store
        self._own_address: str | None = None
        self._last_turn = time.monotonic()
        self._next_beat = 0.0
        self._discovered: queue.SimpleQueue[list[Host]] = queue.SimpleQueue()
        self._discovery: Discovery | None = None

    def _start(self) -> None:
        self._store = self._start_agent(Host(name="localhost"))
        self._store.send(elastic="store", key=self._key, grace=self._plan.grace)
        if self._settings.discovery is None:
            self._use_hosts(self._plan.hosts)
        else:
            self._discovery = Discovery(
                self._settings.discovery, slots=self._settings.slots, seconds=self._settings.timeout,
                changed=self._on_discovered,
            )  # fmt: skip

    def _on_discovered(self, hosts: list[Host]) -> None:
        self._discovered.put(hosts)
        self._wake_up()

    def _is_running(self) -> bool:
        if self._give_up_at is None:
            return True
        return any(agent.process.returncode is None for agent in self._agents if agent is not self._store)

    def _read(self, agent: Agent, descriptor: int) -> None:
        if agent in self._agents:  # otherwise it was dropped by another event of the same select
            super()._read(agent, descriptor)

    def _use_hosts(self, hosts: Sequence[Host]) -> None:
        """Take over a list of hosts: new ones are tried, and those that are gone leave."""
        self._has_hosts = True
        now = time.monotonic()
        for host in hosts:
            state = self._hosts.get(host.name)
            if state is None:
                self._hosts[host.name] = HostState(host, len(self._hosts))
                continue
            if not state.wanted:
                state.wanted, state.retry_at, state.num_attempts = True, now, 0
            state.host = host
        listed = {host.name for host in hosts}
        for state in self._hosts.values():
            if state.name not in listed and state.wanted:
                state.wanted = False
                if state.phase is HostPhase.READY:
                    self._leave(state, "it is no longer listed", now)
                elif state.phase is HostPhase.CONNECTING:
                    self._lose(state, "it is no longer listed", now)

    def _check_hosts(self, now: float) -> None:
        settings = self._settings
        if self._paused or now - self._last_turn > settings.timeout / 2:  # this process itself was slow to read
            for state in self._hosts.values():
                state.heard = now
        self._last_turn = now
        beats = now >= self._next_beat
        if beats:
            self._next_beat = now + settings.beat_seconds
        for state in list(self._hosts.values()):
            agent = state.agent
            if agent is None:
                if state.wanted and now >= state.retry_at and self._store_port is not None:
                    self._connect(state, now)
                continue
            if beats:
                agent.send(do="beat")
            limit = settings.timeout if "hello" in agent.said else max(settings.timeout, _HELLO_SECONDS)
            if now - state.heard > limit:
                self._lose(state, f"it gave no sign of life for {limit:g} s", now)
            elif state.phase is HostPhase.LEAVING:
                self._see_off(state, now)

    def _connect(self, state: HostState, now: float) -> None:
        state.enter(HostPhase.CONNECTING, now)
        agent = state.agent = self._start_agent(state.host)
        agent.send(
            elastic="members", program=self._plan.program, module=self._plan.module, key=self._key,
            grace=self._plan.grace, timeout=self._settings.timeout, packages=self._plan.additions.packages,
            limits_onednn=self._plan.limits_onednn,
        )  # fmt: skip

    def _lead_to_store(self, state: HostState) -> None:
        """Tell an agent where the store is, once both are known."""
        agent = state.agent
        if agent is None or "hello" not in agent.said or "connect" in agent.said or self._store is None:
            return
        if state.host.is_local:
            agent.said.add("connect")
            agent.send(do="connect", local=True, port=self._store_port)
            if self._own_address is not None:
                agent.send(do="own", address=self._own_address)
        elif self._gateway is None:
            self._store.send(do="open")
        else:
            agent.said.add("connect")
            addresses, port = self._gateway
            agent.send(do="connect", local=False, addresses=addresses, port=port)

    def _on_store(self, message: Message) -> None:
        name = message["say"]
        if name == "store":
            self._store_port = message["port"]
            for state in self._hosts.values():
                if state.agent is not None and "connect" in state.agent.said and state.host.is_local:
                    state.agent.send(do="store", port=self._store_port)
        elif name == "listening":
            self._gateway = (message["addresses"], message["port"])
            for state in self._hosts.values():
                self._lead_to_store(state)
        elif name == "note":
            self._note_once(message["text"])
        elif name == "refused":
            self._fail(message["text"])

    def _on_ready(self, state: HostState, address: str | None, now: float) -> None:
        state.enter(HostPhase.READY, now)
        state.answered = True
        if address is not None and self._own_address is None:
            self._own_address = address
            for other in self._hosts.values():
                if other.agent is not None and other.host.is_local:
                    other.agent.send(do="own", address=address)
        if state.came_before or self._generation >= 0:
            self._output.note(f"host {state.name} is {'back' if state.came_before else 'there'}")
        state.came_before, state.why = True, ""
        if not state.wanted:
            self._leave(state, "it is no longer listed", now)

    def _drop(self, agent: Agent) -> None:
        """Forget an agent and end its process here; behind ssh, it hears nothing more and ends its workers."""
        self._agents.remove(agent)
        for stream in (agent.process.stdout, agent.process.stderr):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(stream)  # type: ignore[arg-type]
        if agent.process.returncode is None:
            agent.process.kill()
        with agent.process:
            pass

    def _stop(self, number: int, seconds: float, *, from_outside: bool = False, again: bool = False) -> None:
        if self._discovery is not None:
            self._discovery.stop()
        for state in self._hosts.values():
            if state.phase is HostPhase.CONNECTING and state.agent is not None:
                self._drop(state.agent)
                state.agent = None
        super()._stop(number, seconds, from_outside=from_outside, again=again)

    def _note_once(self, text: str) -> None:
        if text not in self._notes:
            self._notes.add(text)
            self._output.note(text)

    def _lose(self, state: HostState, why: str, now: float) -> None:
        """Give up a host."""
        raise NotImplementedError

    def _leave(self, state: HostState, why: str, now: float) -> None:
        """Let the workers of a host leave at their next commit."""
        raise NotImplementedError

    def _see_off(self, state: HostState, now: float) -> None:
        """Stop the agent of a host that leaves, once its workers have ended or had their time."""
        raise NotImplementedError
