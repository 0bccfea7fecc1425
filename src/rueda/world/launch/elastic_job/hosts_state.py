"""A host of an elastic job, as the driver knows it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from rueda.world.launch.driver import Agent
from rueda.world.launch.elastic_job.settings import STRIKE_SECONDS, STRIKES, ElasticSettings, pause_before
from rueda.world.launch.hosts import Host


class HostPhase(enum.Enum):
    """What the driver does with a host."""

    AWAY = "no agent runs there; it is tried again later"
    CONNECTING = "its agent starts"
    READY = "workers run there, or can be started"
    LEAVING = "its workers are to leave at their next commit"


@dataclass(eq=False)
class HostState:
    """A host: its agent, when it is tried again, and its failures.

    Args:
        host: its name and its slots.
        order: its number in the order in which the hosts came.
    """

    host: Host
    order: int
    phase: HostPhase = HostPhase.AWAY
    agent: Agent | None = None
    heard: float = 0.0
    """when its agent last said something"""
    since: float = 0.0
    """when the phase began"""
    retry_at: float = 0.0
    num_attempts: int = 0
    """how often no agent could be started in a row, or how often it was lost soon"""
    answered: bool = False
    """whether it was tried: a start does not wait for it any more"""
    wanted: bool = True
    """whether it is listed, or the discovery program lists it"""
    came_before: bool = False
    why: str = ""
    """why it is away"""
    strikes: list[float] = field(default_factory=list)
    """when workers failed there, each within ten minutes of the one before"""
    num_exclusions: int = 0
    excluded_until: float = 0.0
    next_start: float = 0.0
    """when a process may be started there again"""

    @property
    def name(self) -> str:
        """The name of the host."""
        return self.host.name

    def enter(self, phase: HostPhase, now: float) -> None:
        """Change the phase."""
        self.phase, self.since, self.heard = phase, now, now

    def strike(self, now: float, settings: ElasticSettings) -> float | None:
        """Count a failure of a worker there; return for how long the host is excluded from now on, or None."""
        if self.strikes and now - self.strikes[-1] > STRIKE_SECONDS:
            self.strikes.clear()
        self.strikes.append(now)
        self.next_start = now + pause_before(len(self.strikes))
        if len(self.strikes) < STRIKES:
            return None
        shortest, longest = settings.cooldown
        seconds = min(longest, shortest * 2.0**self.num_exclusions)
        self.num_exclusions += 1
        self.strikes.clear()
        self.excluded_until = now + seconds
        return seconds

    def may_start(self, now: float) -> bool:
        """Return whether a process may be started there."""
        return self.phase is HostPhase.READY and self.wanted and now >= max(self.excluded_until, self.next_start)
