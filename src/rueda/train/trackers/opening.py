"""The trackers by name: which there are, whether they are installed, and how they are opened."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.util import find_spec

from rueda.errors import MissingExtra, RunError, suggest
from rueda.records import Run
from rueda.train.trackers.mlflow import MlflowTracker
from rueda.train.trackers.tensorboard import TensorboardTracker
from rueda.train.trackers.tracker import Tracker
from rueda.train.trackers.wandb import WandbTracker

TRACKERS: dict[str, Callable[[Run], Tracker]] = {
    "tensorboard": TensorboardTracker,
    "mlflow": MlflowTracker,
    "wandb": WandbTracker,
}
"""the name of a tracker is that of its package and of its extra"""


def checked_names(track: str | Iterable[str], *, tensorboard: bool = False) -> tuple[str, ...]:
    """Return the trackers that a user asks for, each once.

    >>> checked_names("tensorboard", tensorboard=True)
    ('tensorboard',)

    Raises:
        RunError: there is no tracker of this name.
        MissingExtra: its package is not installed.
    """
    wanted = [track] if isinstance(track, str) else list(track)
    names = tuple(dict.fromkeys([*wanted, *["tensorboard"] * tensorboard]))
    for name in names:
        if name not in TRACKERS:
            known = ", ".join(TRACKERS)
            raise RunError("track", expected=f"one of {known}", got=name, do=suggest(name, TRACKERS, "choose one"))
        if find_spec(name) is None:
            raise MissingExtra(name, name)
    return names


def open_trackers(names: Iterable[str], run: Run) -> list[Tracker]:
    """Open trackers for a run, whose folder has been begun; rank 0 calls it."""
    return [TRACKERS[name](run) for name in names]
