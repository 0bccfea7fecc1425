"""The plan of a campaign: which faults happen to which jobs, when and where; one seed gives one plan.

A *job* of the plan is one training that suffers some faults one after the other; after each it goes on by itself, or
ends and is resumed. ``JOBS`` says which kinds of jobs there are, and how many faults of which kind they get.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

HOWS = {
    "kill -9": ("kill",),
    "SIGSTOP": ("stop",),
    "link cut": ("cut",),
    "slow link": ("slow",),
    "lossy link": ("lose_packets",),
    "disk full": ("fill_disk",),
    "disk read-only": ("make_read_only",),
    "file torn": ("tear", "tear", "tear_rows"),
    "file altered": ("alter",),
    "clock set back": ("set_clock_back",),
    "out of memory": ("run_out_of_memory",),
    "store key poisoned": ("poison_store", "poison_key", "poison_key"),
    "bit flipped": ("flip_bit",),
    "host lost": ("cut", "crash"),
}
"""the kinds of faults, and the functions that make them happen (:mod:`faults.injected`, :mod:`faults.links`)"""
KEYS = ("here", "host", "hosts", "segment", "agreed", "linked", "token", "peers", "control")
"""keys of the store that workers write while they find each other, and later their watchers"""
OF_RANK_0 = ("hosts", "segment", "agreed", "token", "peers", "control")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault.

    Args:
        number: its number in the plan.
        kind: one of ``HOWS``.
        how: the function that makes it happen.
        rank: of the worker that suffers it; of a host fault, the number of the host.
        step: the update after which it happens; in an elastic job, updates since all workers were there.
        seconds: how long it lasts, or how long after the update it happens.
        share: a place in a file or in the parameters, from 0 to 1.
        bit: which bit is flipped.
        key: which key of the store is poisoned.
    """

    number: int
    kind: str
    how: str
    rank: int
    step: int
    seconds: float = 0.0
    share: float = 0.0
    bit: int = 0
    key: str = ""

    def told(self) -> dict[str, Any]:
        """Return it for a worker."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class PlannedJob:
    """A job and its faults, in the order in which they happen."""

    name: str
    number: int
    faults: tuple[Fault, ...]


@dataclass(frozen=True, kw_only=True)
class JobKind:
    """A kind of job.

    Args:
        family: plain, elastic, rehearsed or hvd.
        words: what it is, for the table.
        workers: how many there are.
        steps: updates of the whole training; 0 if it lasts until the faults are over.
        per_job: faults that one job suffers.
        counts: how many faults of each kind.
        forever: whether a stopped worker stays so.
    """

    family: str
    words: str
    workers: int
    steps: int
    per_job: int
    counts: dict[str, int]
    forever: bool = False

    @property
    def num_faults(self) -> int:
        """How many faults jobs of this kind get in all."""
        return sum(self.counts.values())


JOBS = {
    "fit-2": JobKind(
        family="plain", words="`rueda.fit`, 2 forked workers, resumed", workers=2, steps=80, per_job=4,
        counts={
            "kill -9": 10, "SIGSTOP": 4, "disk full": 4, "disk read-only": 3, "file torn": 5, "file altered": 3,
            "clock set back": 2, "out of memory": 4, "store key poisoned": 7, "bit flipped": 6,
        },
    ),
    "fit-3": JobKind(
        family="plain", words="`rueda.fit`, 3 forked workers, resumed", workers=3, steps=52, per_job=3,
        counts={
            "kill -9": 6, "SIGSTOP": 2, "disk full": 2, "file torn": 2, "file altered": 2, "out of memory": 2,
            "store key poisoned": 5, "bit flipped": 6,
        },
    ),
    "rehearse-4": JobKind(
        family="rehearsed", words="rehearsal of 4 workers in one forked process, resumed", workers=4, steps=40,
        per_job=3,
        counts={
            "kill -9": 5, "SIGSTOP": 2, "disk full": 3, "disk read-only": 2, "file torn": 3, "file altered": 2,
            "clock set back": 1, "out of memory": 2,
        },
    ),
    "train-2": JobKind(
        family="plain", words="`rueda train --workers 2`, resumed", workers=2, steps=80, per_job=4, forever=True,
        counts={"kill -9": 5, "SIGSTOP": 3, "disk full": 2, "clock set back": 4, "out of memory": 2},
    ),
    "hosts-2": JobKind(
        family="plain", words="`rueda.fit` under `rueda run` on 2 hosts, resumed", workers=2, steps=400, per_job=3,
        counts={"link cut": 4, "slow link": 4, "lossy link": 4},
    ),
    "elastic-3": JobKind(
        family="elastic", words="`rueda run --min-np 1`, 3 workers of one host", workers=3, steps=0, per_job=6,
        forever=True,
        counts={"kill -9": 10, "SIGSTOP": 5, "clock set back": 3, "out of memory": 3, "store key poisoned": 3},
    ),
    "elastic-hosts-4": JobKind(
        family="elastic", words="`rueda run --min-np 2`, 4 workers on 2 hosts", workers=4, steps=0, per_job=4,
        counts={"host lost": 20, "slow link": 2, "lossy link": 2},
    ),
    "elastic-hosts-2": JobKind(
        family="elastic", words="`rueda run --min-np 1`, 2 workers on 2 hosts", workers=2, steps=0, per_job=4,
        counts={},
    ),
    "hvd-2": JobKind(
        family="hvd", words="`horovod.torch`, 2 forked workers, `rueda.Checkpoint`", workers=2, steps=80, per_job=4,
        counts={
            "kill -9": 5, "SIGSTOP": 2, "disk full": 2, "disk read-only": 2, "file torn": 2, "file altered": 2,
            "out of memory": 3, "store key poisoned": 2,
        },
    ),
    "hvd-elastic-3": JobKind(
        family="hvd", words="`horovod.torch.elastic`, 3 workers of one host", workers=3, steps=0, per_job=6,
        forever=True,
        counts={"kill -9": 6, "SIGSTOP": 2, "clock set back": 1, "out of memory": 2, "store key poisoned": 1},
    ),
    "hvd-elastic-hosts-4": JobKind(
        family="hvd", words="`horovod.torch.elastic`, 4 workers on 2 hosts", workers=4, steps=0, per_job=4,
        counts={"host lost": 20, "slow link": 2, "lossy link": 2},
    ),
    "train-elastic-3": JobKind(
        family="elastic", words="`rueda train --elastic`, 3 workers of one host", workers=3, steps=0, per_job=5,
        forever=True,
        counts={"kill -9": 8, "SIGSTOP": 4, "clock set back": 2, "out of memory": 3, "store key poisoned": 3},
    ),
    "train-elastic-hosts-4": JobKind(
        family="elastic", words="`rueda train --elastic`, 4 workers on 2 hosts", workers=4, steps=0, per_job=3,
        counts={"host lost": 6},
    ),
}  # fmt: skip
"""the kinds of jobs, of which one without counts is only in the tests"""
PAUSE_SECONDS = 0.01
"""what a worker waits after each update of a job that another process disturbs"""
TAIL = 10
"""the last updates of a training have no fault, so that each is followed by some"""


def make_plan(seed: int, jobs: dict[str, JobKind] | None = None) -> list[PlannedJob]:
    """Draw the plan of a campaign.

    >>> plan = make_plan(0)
    >>> plan == make_plan(0), plan == make_plan(1), sum(len(job.faults) for job in plan) >= 200
    (True, False, True)
    """
    found: list[PlannedJob] = []
    number = 0
    for name, kind in (JOBS if jobs is None else jobs).items():
        chance = random.Random(f"{seed} {name}")
        kinds = [each for each, count in kind.counts.items() for _ in range(count)]
        chance.shuffle(kinds)
        for start in range(0, len(kinds), kind.per_job):
            part = kinds[start : start + kind.per_job]
            faults = []
            for place, each in enumerate(part):
                faults.append(_draw(chance, number, each, kind, place, len(part)))
                number += 1
            found.append(PlannedJob(name=name, number=len(found), faults=tuple(faults)))
    return found


def _draw(chance: random.Random, number: int, kind: str, job: JobKind, place: int, num_faults: int) -> Fault:
    """Draw one fault, at an update in its own part of the training."""
    how = chance.choice(HOWS[kind])
    is_elastic = job.steps == 0
    if how in ("poison_key", "tear_rows") and (is_elastic or job.family == "hvd"):
        how = "poison_store" if how == "poison_key" else "tear"
    if is_elastic:
        step = chance.randrange(5, 40)
    else:
        width = (job.steps - TAIL) // num_faults
        step = place * width + chance.randrange(width // 4 + 1, width)
    rank = 0 if job.family == "rehearsed" else chance.randrange(job.workers)
    if kind in ("host lost", "link cut", "slow link", "lossy link"):
        rank = chance.randrange(2)
    if kind.startswith(("disk", "file")):
        rank = 0  # it writes the files
    key, seconds = "", 0.0
    if how == "poison_key":
        key = chance.choice(KEYS[:-1])
        rank = 0 if key in OF_RANK_0 else rank
    if how == "kill":
        seconds = chance.uniform(0.0, 0.02)
        if job.words.startswith("`rueda train") and not is_elastic and chance.random() < 0.3:
            how = "kill_driver"
    elif how == "stop":
        seconds = 0.0 if job.forever and chance.random() < 0.7 else chance.uniform(0.2, 1.0)
    elif how in ("slow", "lose_packets"):
        seconds = chance.uniform(1.0, 2.0)
    elif how == "set_clock_back":
        seconds = float(chance.choice((60, 3600, 86400, 10 * 365 * 86400)))
    return Fault(
        number=number, kind=kind, how=how, rank=rank, step=step, seconds=round(seconds, 4),
        share=round(chance.uniform(0.02, 0.98), 4), bit=chance.randrange(32), key=key,
    )  # fmt: skip
