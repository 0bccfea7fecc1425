"""Training in an elastic job, whose workers are lost, leave and come while it runs.

A *generation* (:mod:`rueda.world.elastic`) is a world in which a training runs until the workers change. Then every
process that is left opens the next world, builds its :class:`~rueda.train.training.Training` anew, and goes on from the
last *commit*, as fresh processes do: there is one way to begin, whoever begins.

A commit is a copy of the whole state in the memory of two or three workers (:mod:`rueda.train.copies`): parameters,
optimizer, position in the data, random states. It is made at the start of each generation, then every ``commit_every``
updates or so often that it takes a hundredth of the time, before each evaluation, with every checkpoint, and before
workers leave or come. So a loss costs the updates since the last commit, and a change that was announced costs none.
Only if all workers with a commit are lost is the last checkpoint read from disk.

=====================  ===============================================================================================
a worker is lost       a collective fails (:class:`~rueda.errors.PeerLost`); the others return to the last commit
workers come or leave  the workers agree on it with their next comparison of signals, commit, and raise
                       :class:`WorldChanges`
all workers are lost   fresh processes go on from the last checkpoint of the run folder, which they know to be theirs
=====================  ===============================================================================================
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

from rueda.records.recipe.recipe import Recipe
from rueda.records.run import Incident, Run
from rueda.terminal.numbers import things
from rueda.train.saving import Saver
from rueda.world import World, elastic

if TYPE_CHECKING:
    from rueda.train.training import Training


class WorldChanges(Exception):
    """Raised on all workers, after a commit, when they agree that workers leave or come."""


class Before(NamedTuple):
    """What a worker knows of the generation that it has left."""

    generation: int
    rank: int
    hosts: tuple[str, ...]
    """by rank"""
    step: int
    """updates made"""
    examples: int
    """examples of all workers that were trained"""
    updated_at: float
    """when the last update ended, on this process's clock"""
    failed: bool


class Generations:
    """What this process keeps from one generation to the next."""

    def __init__(self) -> None:
        self.recipe: Recipe | None = None
        """the recipe of the job, once it is known; its ``workers`` are those with which the job began"""
        self.saver: Saver | None = None
        """that of the present or the last generation, with the commits"""
        self._training: Training | None = None
        self._hosts: tuple[str, ...] = ()
        self._updated_at = time.monotonic()
        self._before: Before | None = None

    @staticmethod
    def guard() -> AbstractContextManager[None]:
        """Return the context in which a lost worker raises :class:`PeerLost`."""
        return elastic.guard()

    def enter(self, training: Training, saver: Saver) -> None:
        """Begin a generation; every worker must call it."""
        self._training, self.saver = training, saver
        self._hosts = tuple(training.world.all_gather_object(socket.gethostname()))
        self.note_update()

    def note_update(self) -> None:
        """Remember when the last update was made, and tell the launcher its number if this process fails."""
        self._updated_at = time.monotonic()
        if self._training is not None:
            elastic.progress(self._training.state.step)

    def next_world(self, *, failed: bool) -> World:
        """Leave the world and open that of the next generation."""
        if self._training is not None:
            state = self._training.state
            self._before = Before(
                elastic.generation(), self._training.world.rank, self._hosts, state.step, state.examples,
                self._updated_at, failed,
            )  # fmt: skip
        self._training = None  # its memory is needed for the next one
        return elastic.reform(failed=failed)

    def continues(self, world: World, run: Run | None) -> bool:
        """Return whether this job trained before, so that it goes on; every worker must call it.

        Otherwise the workers begin as those of any job, also after one was lost before the training began.
        """
        if elastic.generation() == 0:
            return False
        is_own = run is not None and world.on_main(is_run_of_this_job, run)
        return is_own or any(world.all_gather_object(self._before is not None))

    def incident(self, training: Training) -> Incident | None:
        """Return the record of the change, after the training was restored; every worker must call it."""
        world, state = training.world, training.state
        told: list[Before | None] = world.all_gather_object(self._before)
        seconds = 0.0 if self._before is None else time.monotonic() - self._before.updated_at
        recovery = world.broadcast_object(seconds)  # rank 0 was there before, if anyone was
        self._before = None
        newest = max((one.generation for one in told if one is not None), default=None)
        there = [one for one in told if one is not None and one.generation == newest]
        if not there:
            text = f"all workers were lost: {_go_on(world.size)} from update {state.step:,}"
            return Incident(
                what="workers-lost", step=state.step, epoch=state.epoch, seconds=state.seconds, ranks=(), hosts=(),
                since_step=state.step, workers_after=world.size, text=text,
            )  # fmt: skip
        hosts, failed = there[0].hosts, any(one.failed for one in there)
        gone = sorted(set(range(len(hosts))) - {one.rank for one in there})
        step, again = max(one.step for one in there), max(one.examples for one in there) - state.examples
        text = f"update {step:,}: {_what(gone, hosts, world.size - len(there), failed)}; "
        text += _go_on(world.size, len(hosts))
        text += f" from update {state.step:,}, where {things(again, 'example')} are trained again," if again else ""
        text += f" after {recovery:.1f} s without an update"
        return Incident(
            what="workers-lost" if failed else "workers-changed", step=state.step, epoch=state.epoch,
            seconds=state.seconds, ranks=tuple(gone), hosts=tuple(hosts[rank] for rank in gone), since_step=state.step,
            workers_before=len(hosts), workers_after=world.size, examples_again=again, recovery_seconds=recovery,
            text=text,
        )  # fmt: skip


def _go_on(now: int, before: int | None = None) -> str:
    """Say how many workers go on.

    >>> _go_on(2, 3), _go_on(1)
    ('2 workers instead of 3 go on', '1 worker goes on')
    """
    instead = "" if before in (None, now) else f" instead of {before}"
    return f"{things(now, 'worker')}{instead} go{'es' * (now == 1)} on"


def _what(gone: list[int], hosts: tuple[str, ...], num_new: int, failed: bool) -> str:
    """Say who is gone and how many have come.

    >>> _what([1], ("a", "b"), 1, True), _what([], ("a",), 2, False)
    ('rank 1 (b) was lost, 1 worker has come', '2 workers have come')
    """
    found = []
    if gone:
        ranks = ", ".join(f"rank {rank} ({hosts[rank]})" for rank in gone)
        found.append(f"{ranks} {'was' if len(gone) == 1 else 'were'} lost" if failed else f"{ranks} left")
    if num_new:
        found.append(f"{things(num_new, 'worker')} {'has' if num_new == 1 else 'have'} come")
    return ", ".join(found) or "a collective failed, and nobody was lost"


def job_name() -> str | None:
    """Return the name of the elastic job of this process, which no other job has; None in other jobs."""
    return os.environ.get("TORCHELASTIC_RUN_ID") if elastic.is_elastic() else None


def is_run_of_this_job(run: Run) -> bool:
    """Return whether an earlier generation of this job began the run in a folder."""
    if not (run.folder / "environment.json").exists():
        return False
    return run.environment().get("job") == job_name()


def guard_of(generations: Generations | None) -> AbstractContextManager[None]:
    """Return :meth:`Generations.guard`, or a context that does nothing outside of an elastic job."""
    return nullcontext() if generations is None else generations.guard()
