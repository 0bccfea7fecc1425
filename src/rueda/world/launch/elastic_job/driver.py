"""The driver of an elastic job: who is in it, and what a failure means.

The job is in one of four phases:

============  ==========================================================================================================
gathering     no worker runs; the job starts when enough hosts have answered
running       a generation trains. Free slots are filled by fresh processes, which wait to be let in
forming       the members of a generation leave it: after a failure, or because hosts have changed. When all that still
              run have arrived, the next generation begins
restarting    all workers are being stopped, and start anew: none of them can survive a failure of others
============  ==========================================================================================================

After a failure those that can survive go on at once if there are at least ``--min-np`` of them: a fresh process takes
seconds to load its libraries, and is let in later. Survivors that do not arrive within the time-out are killed.
"""

from __future__ import annotations

import contextlib
import enum
import queue
import signal
import time
from collections.abc import Callable, Sequence

from rueda.world.elastic.membership import GENERATION, PENDING, SLOT
from rueda.world.launch.driver import STOP_SECONDS, Agent
from rueda.world.launch.elastic_job.history import FailureHistory, last_line
from rueda.world.launch.elastic_job.hosts_driver import HostsDriver
from rueda.world.launch.elastic_job.hosts_state import HostPhase, HostState
from rueda.world.launch.elastic_job.members import Member, Members, by_host
from rueda.world.launch.elastic_job.placement import Seat, free_slots, place
from rueda.world.launch.elastic_job.settings import pause_before
from rueda.world.launch.failure import Failure, first_of, is_lost_peer, summary
from rueda.world.launch.hosts import Host
from rueda.world.launch.output import OutputOptions
from rueda.world.launch.plan import LaunchPlan
from rueda.world.launch.processes import signal_group
from rueda.world.launch.protocol import Message
from rueda.world.launch.remote import why_no_agent
from rueda.world.signals import REQUEUE_STATUS

_REMOVED, _ADDED = 1, 2
_TURN_SECONDS = 0.05  # between two looks at the state of a job that is not running
_HEARING_SECONDS = 2.0
"""for a worker to say that it survives a failure, or which exception ends it: on one connection messages are in order,
but those of the worker whose exception made another one's collective fail may come after that one's"""


class JobPhase(enum.Enum):
    """What the job does; the module's description explains each."""

    GATHERING = "gathering"
    RUNNING = "running"
    FORMING = "forming"
    RESTARTING = "restarting"


class ElasticDriver(HostsDriver):
    """Runs an elastic job; the arguments are those of :class:`Driver`."""

    def __init__(
        self, plan: LaunchPlan, output: OutputOptions, failed: Callable[[Failure, str], None] | None = None
    ) -> None:
        super().__init__(plan, output, failed)
        self._members = Members()
        self._phase = JobPhase.GATHERING
        self._is_failure = False  # forming: something failed, so that the collectives of the others are broken
        self._counts = False  # this change counts as one of the restarts
        self._judged = False
        self._why = ""  # of a change without a failed worker
        self._deadline = 0.0  # forming: for members to arrive
        self._heard_until = 0.0  # forming: for members to say what they do
        self._start_at = 0.0  # gathering: not earlier
        self._short_since: float | None = None  # too few workers can run
        self._history = FailureHistory(self._settings.restarts)
        self._is_finishing = False

    # The event loop.

    def _rank_of(self, number: int) -> int:
        return self._members.shown_rank(number)

    def _timeout(self) -> float | None:
        given = super()._timeout()
        turn = min(1.0, self._settings.beat_seconds) if self._phase is JobPhase.RUNNING else _TURN_SECONDS
        return turn if given is None else min(given, turn)

    def _advance(self, now: float) -> None:
        super()._advance(now)
        if self._give_up_at is not None:
            return
        with contextlib.suppress(queue.Empty):
            while True:
                self._use_hosts(self._discovered.get_nowait())
        if self._discovery is not None and (error := self._discovery.error) is not None:
            if not self._has_hosts:
                self._error = error
                self._stop(signal.SIGTERM, STOP_SECONDS)
                return
            self._note_once(f"{error}; until then the hosts stay as they were")
        self._check_hosts(now)
        self._check_members(now)
        {
            JobPhase.GATHERING: self._gather,
            JobPhase.RUNNING: self._fill_and_announce,
            JobPhase.FORMING: self._form_when_all_arrived,
            JobPhase.RESTARTING: self._restart_when_all_ended,
        }[self._phase](now)

    # The hosts.

    def _lose(self, state: HostState, why: str, now: float, *, is_said: bool = True) -> None:
        """Give up a host: its agent is killed, its workers are counted as lost, and it is tried again later.

        Args:
            state: the host.
            why: why it is given up.
            now: the time.
            is_said: whether to print it; what ends the job is printed as its error.
        """
        members = self._members.alive(state)
        if state.agent is not None:
            if state.host.is_local:
                for pid in state.agent.pids:
                    signal_group(pid, signal.SIGKILL)
            self._drop(state.agent)
            state.agent = None
        was = state.phase
        state.enter(HostPhase.AWAY, now)
        state.answered = True
        state.num_attempts = 0 if was is HostPhase.READY and now - state.since > 60.0 else state.num_attempts + 1
        pause = self._settings.timeout if was is HostPhase.LEAVING else max(1.0, pause_before(state.num_attempts + 1))
        state.retry_at = now + pause
        if is_said and why != state.why and was is not HostPhase.LEAVING and state.wanted:
            known = why if why.startswith(f"host {state.name}") else f"host {state.name} is lost: {why}"
            self._output.note(f"{known}; it is tried again" if state.came_before else known)
        state.why = why
        had_active = any(one.active for one in members)
        for one in members:
            one.ended = True
            one.rank = None
            self._running.discard(one.number)
        if had_active:
            self._incident(now, f"host {state.name} is lost: {why}", counts=was is not HostPhase.LEAVING)

    def _leave(self, state: HostState, why: str, now: float) -> None:
        """Let the workers of a host leave at their next commit."""
        if state.phase is not HostPhase.READY:
            return
        self._output.note(f"host {state.name} leaves ({why}); its workers have {self._plan.grace:g} s to commit")
        state.enter(HostPhase.LEAVING, now)
        state.why = why
        for one in self._members.pending():
            if one.host is state:
                self._end(one, signal.SIGTERM)
        if any(one.active for one in self._members.alive(state)):
            if self._survivors():
                self._tell(self._members.active(), do="update", bits=_REMOVED)
            else:
                self._restart_all(now, f"host {state.name} leaves", counts=False)

    def _see_off(self, state: HostState, now: float) -> None:
        """Stop the agent of a host that leaves, once its workers have ended or had their time."""
        assert state.agent is not None
        is_late = now - state.since > self._plan.grace
        if (is_late or not self._members.alive(state)) and "stop" not in state.agent.said:
            state.agent.said.add("stop")
            state.agent.send(do="stop", signal=int(signal.SIGTERM), seconds=STOP_SECONDS)

    # What agents and members say.

    def _on_message(self, agent: Agent, message: Message) -> None:
        now, name = time.monotonic(), message["say"]
        if agent is self._store:
            self._on_store(message)
            return
        state = next((one for one in self._hosts.values() if one.agent is agent), None)
        if state is None:
            return
        agent.said.add(name)
        state.heard = now
        if name == "hello":
            self._warn_of_cores(agent.host, message["cores"])
            self._lead_to_store(state)
        elif name == "reached":
            self._on_ready(state, message["address"], now)
        elif name == "unreachable":
            self._lose(state, f"host {state.name}: {message['text']}", now)
        elif name == "spawned":
            agent.pids.append(message["pid"])
        elif name == "ended":
            self._on_member_end(self._members[message["member"]], message["status"], now, killed=message["killed"])
        elif name == "member":
            self._on_said(self._members[message["member"]], message["message"], now)
        elif name == "signalled":
            if state.host.is_local:
                self._on_signal(message["signal"])
            else:
                self._leave(state, f"it got {signal.Signals(message['signal']).name}", now)
        elif name == "refused" and not any(self._members):
            self._fail(message["text"] if state.host.is_local else f"host {state.name}: {message['text']}")
        elif name == "refused":
            self._lose(state, f"host {state.name}: {message['text']}", now)
        elif name == "note":
            self._note_once(message["text"])

    def _on_said(self, member: Member, message: Message, now: float) -> None:
        name = message["say"]
        if member.ended or member.expected:
            return
        if name == "register":
            member.registered = True
        elif name == "join":
            member.joined = True
        elif name == "failing":
            member.failing = now
            member.error, member.step, member.final = message["error"], message["step"], message["final"]
        elif name == "arrive":
            member.registered = member.arrived = True
            member.step = message["step"]
            if message["failed"]:
                reason = message["reason"] or "a collective failed"
                self._incident(now, f"rank {member.rank} asks for a new world: {reason}", counts=True)
            elif self._phase is JobPhase.RUNNING:
                self._begin_forming(now, is_failure=False)

    def _on_end(self, agent: Agent) -> None:
        """Find out why an agent has ended; base: that ends the job."""
        if agent is self._store:
            if self._give_up_at is None:
                self._fail("the process that serves the store of this job ended; start the job again")
            return
        state = next((one for one in self._hosts.values() if one.agent is agent), None)
        try:
            status = agent.process.wait(STOP_SECONDS)
        except Exception:
            agent.process.kill()
            status = agent.process.wait()
        if self._give_up_at is not None or state is None:
            return
        self._read_rest(agent)
        stderr = agent.stderr.decode(errors="replace")
        now = time.monotonic()
        if "hello" in agent.said:
            last = stderr.strip().splitlines()[-1:] or [f"exit status {status}"]
            why = "its workers have left" if state.phase is HostPhase.LEAVING else f"its agent ended ({last[0]})"
        else:
            why = why_no_agent(self._plan, state.host, status, stderr)
        others = [one for one in self._hosts.values() if one is not state]
        nobody = not (state.came_before or any(one.agent or one.came_before or not one.answered for one in others))
        ends = nobody and self._discovery is None
        self._lose(state, why, now, is_said=not ends)
        if ends:
            self._fail(why)

    def _on_member_end(self, member: Member, status: int, now: float, *, killed: str) -> None:
        was_active, rank = member.active, member.rank
        member.ended = True
        self._running.discard(member.number)
        if self._give_up_at is not None or member.expected:
            member.rank = None
            return
        if status == 0 and was_active:
            self._is_finishing = True
            self._left[member.number] = now
            return
        member.rank = None
        if member.host.phase is HostPhase.LEAVING:
            if was_active:
                self._incident(now, f"host {member.host.name} leaves", counts=False)
            return
        began = [when for when in (self._output.traceback_seconds.get(member.number), member.failing) if when]
        self._failures.append(Failure(
            rank=member.shown_rank if rank is None else rank, host=member.host.name, status=status, ended=now,
            traceback=min(began, default=None), left=tuple(map(self._rank_of, self._left)), number=member.number,
            killed=killed,
        ))  # fmt: skip
        if was_active:
            self._incident(now, f"rank {rank} on {member.host.name} has ended", counts=True)
        elif self._phase is JobPhase.RUNNING:
            self._judge(now, pending=True)

    # Members.

    def _survivors(self) -> list[Member]:
        return [one for one in self._members.active() if one.registered]

    def _check_members(self, now: float) -> None:
        """Kill those that do not end although they should."""
        for one in self._members.alive():
            if one.kill_at is not None and now >= one.kill_at:
                one.kill_at = None
                self._send_kill(one, signal.SIGKILL)

    def _end(self, member: Member, number: int) -> None:
        """End a member by a signal, as the driver wants."""
        member.expected, member.rank = True, None
        self._send_kill(member, number)

    def _send_kill(self, member: Member, number: int) -> None:
        if member.host.agent is not None:
            member.host.agent.send(do="kill", member=member.number, signal=int(number), seconds=STOP_SECONDS)

    def _tell(self, members: Sequence[Member], **message: object) -> None:
        for state, ones in by_host(members).items():
            if state.agent is not None:
                state.agent.send(do="tell", members=[one.number for one in ones], message=message)

    def _variables(self, members: Sequence[Member], generation: int) -> tuple[dict[int, dict[str, str]], bool]:
        """Return the variables of each member of a generation, and whether it has several hosts."""
        order = [state.name for state in sorted(self._hosts.values(), key=lambda state: state.order)]
        seats: dict[int, Seat] = place([one.candidate() for one in members], order)
        nodes = {seats[one.number].node: (one.host.name, seats[one.number].local_size) for one in members}
        hosts = [Host(name=nodes[node][0], slots=nodes[node][1]) for node in sorted(nodes)]
        found = {}
        for number, seat in seats.items():
            found[number] = {
                **seat.variables(),
                "TORCHELASTIC_RESTART_COUNT": str(generation),
                "TORCHELASTIC_MAX_RESTARTS": str(self._settings.restarts or 0),
                "TORCHELASTIC_RUN_ID": self._run_id,
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_ERROR_FILE": "",
                GENERATION: str(generation),
                **self._plan.additions.per_worker(hosts, seat.node, seat.local_rank, seat.rank),
            }
        return found, len(hosts) > 1

    def _free_slots(self, now: float) -> list[tuple[HostState, int]]:
        taken: dict[str, list[int]] = {}
        for one in self._members.alive():
            taken.setdefault(one.host.name, []).append(one.slot)
        ready = sorted((state for state in self._hosts.values() if state.may_start(now)), key=lambda one: one.order)
        found = free_slots(taken, {state.name: state.host.slots for state in ready}, self._settings.most)
        return [(self._hosts[name], slot) for name, slot in found]

    def _spawn(self, member: Member, variables: dict[str, str], several: bool) -> None:
        assert member.host.agent is not None
        self._running.add(member.number)
        member.shown_rank = int(variables["RANK"])
        variables = {**variables, SLOT: str(member.slot)}
        member.host.agent.send(do="spawn", member=member.number, variables=variables, several=several)

    # Phases.

    def _gather(self, now: float) -> None:
        """Start all workers as soon as enough hosts are there."""
        wanted = [state for state in self._hosts.values() if state.wanted]
        pausing = any(state.phase is HostPhase.READY and state.excluded_until <= now < state.next_start
                      for state in wanted)  # fmt: skip
        if now < self._start_at or pausing or not self._has_hosts or self._store_port is None:
            return
        slots = self._free_slots(now)
        enough = self._settings.wanted or self._settings.most
        if len(slots) < enough and not (
            len(slots) >= self._settings.least and all(state.answered for state in wanted)
        ):  # fmt: skip
            if all(state.answered for state in wanted):
                self._wait_for_hosts(now, len(slots))
            return
        members = [self._members.add(state, slot, 0) for state, slot in slots]
        self._generation += 1
        variables, several = self._variables(members, self._generation)
        for one in members:
            one.rank = int(variables[one.number]["RANK"])
            self._spawn(one, variables[one.number], several)
        self._left.clear()
        self._enter_running()

    def _begin_gathering(self) -> None:
        """Start all workers anew, with an empty store, as soon as enough hosts are there."""
        assert self._store is not None
        self._phase, self._store_port = JobPhase.GATHERING, None
        self._store.send(do="renew")
        self._start_at = self._history.restart_at

    def _enter_running(self) -> None:
        self._phase, self._short_since = JobPhase.RUNNING, None
        self._is_failure = self._counts = self._judged = False
        self._why = ""

    def _wait_for_hosts(self, now: float, num_workers: int) -> None:
        """Say that too few workers can run, and end the job after ``--elastic-timeout``."""
        least, seconds = self._settings.least, self._settings.wait
        if self._short_since is None:
            self._short_since = now
            self._output.note(
                f"{num_workers} of at least {least} workers can run; waiting up to {seconds:g} s for hosts"
            )
        elif now - self._short_since > seconds:
            self._lost = (
                f"only {num_workers} of at least {least} workers could run for {seconds:g} s (--elastic-timeout), so "
                "the job ends"
            )
            self._lost_status = REQUEUE_STATUS
            self._stop(signal.SIGTERM, STOP_SECONDS)

    def _fill_and_announce(self, now: float) -> None:
        if self._is_complete():
            return
        active = self._members.active()
        if self._is_finishing:
            for one in self._members.pending():
                self._end(one, signal.SIGTERM)
            return
        slots = self._free_slots(now)
        if not any(one.registered for one in active):
            if slots and self._traceback_deadline is None:
                names = ", ".join(sorted({state.name for state, _ in slots}))
                self._restart_all(now, f"{len(slots)} more workers can run on {names}", counts=False)
            return
        self._fill(slots)
        fresh = [one for one in self._members.pending() if one.joined and not one.announced]
        if fresh:
            for one in fresh:
                one.announced = True
            self._tell(active, do="update", bits=_ADDED)
        if any(one.slot >= one.host.host.slots and not one.announced for one in active):
            for one in active:
                one.announced = one.announced or one.slot >= one.host.host.slots
            self._tell(active, do="update", bits=_REMOVED)

    def _fill(self, slots: Sequence[tuple[HostState, int]]) -> None:
        """Start fresh processes, which wait until the others let them in."""
        members = [self._members.add(state, slot, 0) for state, slot in slots]
        guesses, several = self._variables([*self._members.active(), *self._members.pending()], self._generation)
        for one in members:
            variables = {**guesses[one.number], PENDING: "1", "TORCHELASTIC_RESTART_COUNT": str(10**6 + one.number)}
            self._spawn(one, variables, several)

    def _is_complete(self) -> bool:
        """End the job if all members of the generation have ended with status 0."""
        if self._is_finishing and not self._members.active() and not self._failures:
            for one in self._members.pending():
                self._end(one, signal.SIGTERM)
            self._stop(signal.SIGTERM, STOP_SECONDS)
            return True
        return False

    def _begin_forming(self, now: float, *, is_failure: bool) -> None:
        self._phase, self._is_failure = JobPhase.FORMING, is_failure
        self._deadline = now + self._settings.timeout
        self._heard_until = now + _HEARING_SECONDS

    def _incident(self, now: float, why: str, *, counts: bool) -> None:
        """Something has failed: let those go on that can, or start all workers anew."""
        self._counts = self._counts or counts
        self._why = self._why or why
        if self._phase is JobPhase.RUNNING and not self._survivors():
            if self._failures:
                self._traceback_deadline = self._traceback_deadline or now + 2.0  # then: _on_failures
            else:
                self._on_failures()
        elif self._phase in (JobPhase.RUNNING, JobPhase.FORMING) and not self._is_failure:
            self._begin_forming(now, is_failure=True)
            self._break(why)

    def _break(self, why: str) -> None:
        """Make the collectives of the present generation fail."""
        self._tell(self._survivors(), do="break", generation=self._generation, why=why)

    def _on_failures(self) -> None:
        now = time.monotonic()
        if self._phase is JobPhase.RUNNING and self._judge(now):
            self._restart_all(now, "", counts=False)

    def _restart_all(self, now: float, why: str, *, counts: bool) -> None:
        """Stop all workers, in order to start them anew."""
        if why:
            self._output.note(f"{why}: all workers start again")
        self._counts = self._counts or counts
        self._phase = JobPhase.RESTARTING
        for one in self._members.alive():
            self._end(one, signal.SIGTERM)

    def _restart_when_all_ended(self, now: float) -> None:
        if not self._members.alive():
            self._failures.clear()
            self._traceback_deadline = None
            self._is_finishing = False
            self._begin_gathering()

    def _form_when_all_arrived(self, now: float) -> None:
        late = [one for one in self._members.active() if not one.arrived]
        if late:
            if self._is_failure and now >= self._heard_until:
                for one in late:
                    if not one.registered and one.failing is None:  # else it ends by itself, and is what has failed
                        self._end(one, signal.SIGTERM)
            if now > self._deadline and not self._is_failure:
                self._is_failure = True
                self._deadline = now + self._settings.timeout
                self._break("other workers wait for the next generation")
            elif now > self._deadline:
                for one in late:
                    self._output.note(
                        f"rank {one.rank} on {one.host.name} did not leave the broken world within "
                        f"{self._settings.timeout:g} s (--timeout) and is killed"
                    )
                    self._end(one, signal.SIGKILL)
            return
        if not self._judged and (self._failures or self._counts):
            if not self._judge(now):
                return
            self._judged = True
        if not self._is_complete():
            self._form(now)

    def _form(self, now: float) -> None:
        """Begin the next generation, if enough members have arrived or joined."""
        staying: list[Member] = []
        for one in self._members.active():
            state = one.host
            if state.phase is HostPhase.READY and one.slot < state.host.slots:
                staying.append(one)
            else:
                self._dismiss(one, now, state.why or f"host {state.name} has fewer slots")
        joined = [one for one in self._members.pending() if one.joined and one.host.phase is HostPhase.READY]
        members = [*staying, *joined][: self._settings.most]
        if not members and self._is_finishing:
            self._is_complete()
            return
        least = 1 if self._is_finishing else self._settings.least
        if len(members) < least:
            if not staying and not self._members.pending():
                self._begin_gathering()
                return
            self._fill(self._free_slots(now))
            if len(staying) + len(self._members.pending()) < least:
                self._wait_for_hosts(now, len(members))
            else:
                self._short_since = None
            return
        former = len(staying)
        self._generation += 1
        variables, several = self._variables(members, self._generation)
        for state, ones in by_host(members).items():
            assert state.agent is not None
            state.agent.send(
                do="tell", members=[one.number for one in ones], several=several,
                message={
                    "do": "assign", "generation": self._generation, "seconds": self._settings.timeout,
                    "variables": {str(one.number): variables[one.number] for one in ones},
                },
            )  # fmt: skip
        for one in members:
            one.rank = one.shown_rank = int(variables[one.number]["RANK"])
            one.arrived = one.joined = one.announced = False
        fresh, number = len(members) - former, f"{len(members)} worker{'s' * (len(members) > 1)}"
        self._output.note(f"generation {self._generation}: {number}" + (f", {fresh} of them new" if fresh else ""))
        self._enter_running()

    def _dismiss(self, member: Member, now: float, why: str) -> None:
        self._tell([member], do="dismiss", why=why)
        member.expected, member.rank, member.kill_at = True, None, now + self._settings.timeout

    # Judgement of failures.

    def _judge(self, now: float, *, pending: bool = False) -> bool:
        """Count a failure, say what happened, and return whether the job goes on.

        Args:
            now: the time.
            pending: whether a fresh process has failed, before it was in a generation.
        """
        failures, self._failures = self._failures, []
        first, text = None, self._why
        if failures:
            causes = [one for one in failures if one.number is not None and not self._is_consequence(one.number)]
            first = first_of(causes or failures)
            assert first.number is not None
            member, stderr = self._members[first.number], self._output.stderr_tail(first.number)
            text, error = summary(first, stderr), member.error or last_line(stderr)
            final = next((one for one in failures if one.number is not None and self._members[one.number].final), None)
            if final is not None and not pending:
                assert final.number is not None
                return self._end_job(final, self._members[final.number].error or text)
            if error is not None and self._history.repeats(error, member.step):
                step = "" if member.step is None else f" at step {member.step}"
                return self._end_job(first, f"the same error{step} for the second time, so the job ends: {error}")
            self._strike(member.host, now)
            if self._is_finishing and not self._survivors() and any(one.registered for one in self._members):
                # Fresh processes would train from the beginning what others have finished.
                return self._end_job(first, f"{text}, after the others had finished")
        if self._counts or pending:
            if not self._history.count(now):
                limit = self._history.limit
                used = f"{limit} restart{' (--restarts) is' if limit == 1 else 's (--restarts) are'} used up"
                return self._end_job(first, f"{text}; {used}, so the job ends")
            self._output.note(f"{text}; {self._history.number}")
        elif text:
            self._output.note(text)
        return True

    def _is_consequence(self, number: int) -> bool:
        """Return whether a member ended with an error that only tells of another one's end."""
        error = self._members[number].error
        return error is not None and is_lost_peer(error)

    def _strike(self, state: HostState, now: float) -> None:
        """Count a failure of a worker on a host, which may exclude the host, if it is not the only one."""
        seconds = state.strike(now, self._settings)
        if seconds is not None and (len(self._hosts) > 1 or self._discovery is not None):
            self._output.note(f"host {state.name} has failed repeatedly; nothing starts there for {seconds:g} s")
        elif seconds is not None:
            state.excluded_until = 0.0

    def _end_job(self, failure: Failure | None, text: str) -> bool:
        self._output.note(text)
        self._failures = [] if failure is None else [failure]
        self._lost = None if failure is not None else "the job has failed"
        self._stop(signal.SIGTERM, STOP_SECONDS)
        return False

    # The end.
