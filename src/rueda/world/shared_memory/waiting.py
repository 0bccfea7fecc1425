"""How a rank waits until the counters of the others have reached a value.

A rank that is only microseconds late is best awaited by looking again and again. It must not last, however: the core,
or Python's interpreter lock, may be just what the late rank or another thread of this process needs. So a rank looks
without a pause for some tens of microseconds, if there is a core for each rank and if that has been of use of late: on
busy cores it seldom is.

Then it says which counter it awaits, and sleeps until the rank that has set it wakes it (:mod:`.futex`). A wakeup
cannot be missed: the one stores the counter and then reads what is awaited, the other stores what it awaits and then
reads the counter, with a fence in between. If it were, the sleep would end after some milliseconds by itself. Where the
system knows no futex, a rank sleeps between its looks, longer and longer, from the shortest sleep that the system has
(about 60 µs) to milliseconds.

Twenty times a second it also looks whether the one it waits for is gone, and whether its own program has failed
elsewhere.
"""

from __future__ import annotations

import math
import platform
import threading
import time
from collections.abc import Callable, Sequence

from rueda.world.cores import has_own_core
from rueda.world.shared_memory.futex import futex_of
from rueda.world.shared_memory.segment import AWAITS, DONE, NUM_COUNTERS, Segment

Check = Callable[[], BaseException | None]
"""returns the error that has ended the program of this rank elsewhere, or None"""

_SPIN_SECONDS = 50e-6
_SLEEP_SECONDS = (5e-6, 2e-4, 2e-3)  # the first, the longest, and that of long waits; the system adds about 60 µs
_LONG_SECONDS = 0.2
_FUTEX_SECONDS = 5e-3  # after which a sleep ends if nobody has woken this rank
_MOST_USE, _ENOUGH_USE, _TRY_EVERY = 8, 4, 16  # of looking without a pause: see _Usefulness
_LOOK_SECONDS = 0.05  # between two looks at the processes of the others

ORDERED = platform.machine() in ("x86_64", "AMD64", "i686")
"""whether this processor makes stores visible in program order, and loads in program order"""


class PeerGone(RuntimeError):
    """A rank that this one waits for has ended or has closed the group; Gloo raises a RuntimeError then, too."""


def _fence() -> None:
    """Keep loads and stores before this call ahead of those after it, on processors that may reorder them.

    Releasing a lock is a store with release semantics, and acquiring one is a load with acquire semantics. An
    acquire never overtakes an earlier release, so locking twice contains a release followed by an acquire. On x86-64,
    which lets a load overtake an earlier store and nothing else, acquiring a lock is an instruction that forbids it.
    The lock is a new one: an exception of a signal handler might leave it locked for ever.
    """
    lock = threading.Lock()
    for _ in range(2):
        lock.acquire()
        lock.release()


class _Usefulness:
    """Whether looking without a pause is worth its time, as the last waits tell.

    If what is awaited comes while this rank looks, that was of use; if not, another rank may have wanted the core. Two
    of three waits must have been of use. Otherwise it is tried again now and then.
    """

    def __init__(self, *, possible: bool) -> None:
        self._possible = possible
        self._use = _MOST_USE
        self._num_waits = 0

    def is_expected(self) -> bool:
        """Return whether to look without a pause in the next wait."""
        self._num_waits += 1
        return self._possible and (self._use >= _ENOUGH_USE or self._num_waits % _TRY_EVERY == 0)

    def note(self, *, was_of_use: bool) -> None:
        """Tell whether it was."""
        self._use = min(_MOST_USE, self._use + 1) if was_of_use else max(0, self._use - 2)


class Counters:
    """The counters of a segment, as one rank uses them.

    Args:
        segment: the segment.
        check: called while waiting; an error that it returns is raised.
        seconds: the time limit of a wait.
        ranks: how messages to the user call the ranks of the segment; by default by their numbers in it.
    """

    def __init__(self, segment: Segment, check: Check, seconds: float, ranks: Sequence[int] | None = None) -> None:
        self._ranks = range(segment.size) if ranks is None else ranks
        self._segment = segment
        self._values = segment.counters
        self._check = check
        self._limit = seconds
        self._own = segment.rank * NUM_COUNTERS
        others = [rank for rank in range(segment.size) if rank != segment.rank]
        self._others = [[rank * NUM_COUNTERS + kind for rank in others] for kind in range(NUM_COUNTERS)]
        self._looking = _Usefulness(possible=has_own_core(segment.size))
        self._futex = futex_of(segment.counters, _FUTEX_SECONDS)
        self._awaits = self._own + AWAITS
        self._awaited_by_others = [rank * NUM_COUNTERS + AWAITS for rank in others]
        self.waits_since: float | None = None
        """since when (``time.monotonic``) this rank has waited, once it looks with pauses"""

    def set(self, kind: int, value: int) -> None:
        """Set one of this rank's counters, after everything that was stored before."""
        if not ORDERED:
            _fence()
        index = self._own + kind
        self._values[index] = value
        if self._futex is not None and kind <= DONE:  # what is awaited
            _fence()
            for awaited in self._awaited_by_others:
                if self._values[awaited] == index + 1:
                    self._futex.wake(index)
                    return

    def get(self, kind: int, rank: int) -> int:
        """Return a counter of any rank."""
        value: int = self._values[rank * NUM_COUNTERS + kind]
        if not ORDERED:
            _fence()
        return value

    def reached(self, kind: int, value: int) -> bool:
        """Return whether a counter of all other ranks has reached a value."""
        values = self._values
        for index in self._others[kind]:
            if values[index] < value:
                return False
        if not ORDERED:
            _fence()
        return True

    def wait(self, kind: int, value: int, seconds: float = math.inf) -> bool:
        """Wait until a counter of all other ranks has reached a value; return False if not after ``seconds``.

        Raises:
            PeerGone: a rank is gone that has not reached it.
            RuntimeError: the time limit of the group has passed.
        """
        return self._wait(self._others[kind], value, seconds)

    def wait_for(self, rank: int, kind: int, value: int) -> None:
        """Wait until a counter of one rank has reached a value."""
        self._wait([rank * NUM_COUNTERS + kind], value, math.inf)

    def _wait(self, indices: Sequence[int], value: int, seconds: float) -> bool:
        values = self._values
        for index in indices:
            if values[index] < value and not self._wait_long(indices, value, seconds):
                return False
        if not ORDERED:
            _fence()
        return True

    def _wait_long(self, indices: Sequence[int], value: int, seconds: float) -> bool:
        values, clock = self._values, time.perf_counter
        begun = clock()
        late = list(indices)
        if self._looking.is_expected():
            look_end = begun + _SPIN_SECONDS
            while clock() < look_end:
                while values[late[-1]] >= value:
                    late.pop()
                    if not late:
                        self._looking.note(was_of_use=True)
                        return True
            self._looking.note(was_of_use=False)
        self.waits_since = time.monotonic()
        try:
            return self._sleep_until(late, value, begun, seconds)
        finally:
            self.waits_since = None

    def _sleep_until(self, late: list[int], value: int, begun: float, seconds: float) -> bool:
        values, clock = self._values, time.perf_counter
        sleep, longest, of_long_waits = _SLEEP_SECONDS
        look = begun + _LOOK_SECONDS
        while True:
            late = [index for index in late if values[index] < value]
            if not late:
                return True
            now = clock()
            if now >= look:
                look = now + _LOOK_SECONDS
                self._look(late, value, now - begun)
            if now - begun >= seconds:
                return False
            if self._futex is not None:
                self._sleep_on(late[0], value)
                continue
            time.sleep(sleep)  # also lets other threads of this process have the interpreter lock
            sleep = min(longest, sleep * 1.25) if now - begun < _LONG_SECONDS else of_long_waits

    def _sleep_on(self, index: int, value: int) -> None:
        """Sleep until a counter changes, or some milliseconds."""
        assert self._futex is not None
        self._values[self._awaits] = index + 1
        try:
            seen = self._values[index]  # if this is older than what is there, the kernel does not let this rank sleep
            if seen < value:
                self._futex.sleep(index, seen)
        finally:
            self._values[self._awaits] = 0

    def wait_until(
        self,
        ready: Callable[[], bool],
        awaited: Callable[[], Sequence[tuple[int, int]]],
        rest: Callable[[float], None],
    ) -> None:
        """Wait until a function returns True, without looking again and again: ``rest`` ends when it may do so.

        Args:
            ready: the function.
            awaited: returns kinds of counters and the values that those of all other ranks should reach.
            rest: sleeps for these seconds, or less.

        Raises:
            PeerGone: a rank is gone that has not reached what is awaited.
            RuntimeError: the time limit of the group has passed.
        """
        clock = time.perf_counter
        begun = clock()
        self.waits_since = time.monotonic()
        try:
            sleep, longest, of_long_waits = _SLEEP_SECONDS
            look = begun + _LOOK_SECONDS
            while not ready():
                now = clock()
                if now >= look:
                    look = now + _LOOK_SECONDS
                    self._look([], 0, now - begun)
                    for kind, value in awaited():
                        late = [index for index in self._others[kind] if self._values[index] < value]
                        self._look(late, value, now - begun)
                rest(sleep)
                sleep = min(longest, sleep * 1.25) if now - begun < _LONG_SECONDS else of_long_waits
        finally:
            self.waits_since = None

    def _look(self, late: list[int], value: int, waited: float) -> None:
        """Raise an error if there is nothing to wait for any more."""
        error = self._check()
        if error is not None:
            raise error
        gone = [index for index in late if self._segment.is_gone(index // NUM_COUNTERS)]
        # A rank that has ended may have reached the value just before.
        gone = [index for index in gone if self._values[index] < value]
        if gone:
            raise PeerGone(f"shared memory: rank {self._ranks[gone[0] // NUM_COUNTERS]} of the group is gone")
        if waited > self._limit:
            ranks = ", ".join(str(self._ranks[index // NUM_COUNTERS]) for index in late)
            raise RuntimeError(
                f"shared memory: timed out after {waited:.0f} s waiting for ranks {ranks or 'elsewhere'} of the group"
            )
