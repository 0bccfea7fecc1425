"""What a training writes while it runs: rows of figures, noise scales, and incidents."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rueda.records import Row, Run
from rueda.records.run import Incident, NoiseRow
from rueda.train.trackers import open_trackers
from rueda.train.trackers.tracker import numbers
from rueda.world import World


class RunWriter:
    """Writes to the run folder and to the trackers; every worker has a writer, and rank 0's writes.

    Args:
        world: the workers.
        run: the folder, which has been begun; None writes nothing.
        track: the trackers to write to as well (:mod:`rueda.train.trackers`).
        announce: tells the user a line.
    """

    def __init__(self, world: World, run: Run | None, track: Sequence[str], announce: Callable[[str], None]) -> None:
        self._world, self._run, self._announce = world, run, announce
        self._trackers = dict(zip(track, open_trackers(track, run), strict=True)) if run and world.is_main else {}

    def append(self, row: Row) -> None:
        """Write a row to the run folder and to the trackers."""
        if self._run is not None:
            self._world.on_main(self._run.append, row)
        for name, tracker in list(self._trackers.items()):
            try:
                tracker.write(numbers(row), row.step)
            except Exception as error:  # such as a server that is gone: the training goes on
                del self._trackers[name]
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                self._announce(f"{name} gets no further figures ({reason}); the run folder has all of them")

    def append_noise(self, rows: Sequence[NoiseRow], *, sync: bool = False) -> None:
        """Write the rows of noise scales; with ``sync`` they are on disk when it returns."""
        if self._run is not None and rows:
            run = self._run
            self._world.on_main(lambda: run.append_all(rows, sync=sync))

    def report(self, incident: Incident) -> None:
        """Write an incident, and tell the user of it."""
        if self._run is not None:
            self._world.on_main(self._run.append, incident)
        self._announce(incident.text)

    def forget_after(self, step: int, epoch: int) -> None:
        """Remove the rows behind a checkpoint to which the training has gone back."""
        if self._run is not None:
            self._world.on_main(self._run.forget_after, step, epoch)

    def close(self) -> None:
        """Close the trackers."""
        for tracker in self._trackers.values():
            tracker.close()
