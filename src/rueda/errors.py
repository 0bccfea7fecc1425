"""What can go wrong, as a tree.

::

    RuedaError                 every error that Rueda raises on purpose
    ├── WorldError             the workers: a wrong environment, a rendezvous that nobody answers
    │   └── LaunchError        a script, host or slot that cannot be started
    ├── TaskError              a task that cannot be loaded or does not fit together
    ├── DataError              a data set that is missing, torn, corrupt or of the wrong shape
    ├── RecipeError            a recipe that contradicts itself or cannot be read
    ├── NonFiniteError         a gradient or weight that is NaN or infinite, met by an optimizer
    ├── RunError               a run folder that cannot be written or read
    │   └── CheckpointError    a checkpoint that is torn, corrupt or of another model
    ├── ProfileError           a profile or a cluster that cannot be read, or says too little for a plan
    ├── JobError               a process that was started for a job ended without its answer
    ├── ExamineError           a model, direction or loader whose landscape or curvature cannot be had
    └── MissingExtra           an optional package is needed; the message names the pip command

The commands print such an error as one line and end with its ``exit_status``: 2, or that of the process that failed
(JobError). A message says what was expected, what came, and what to do: every error takes these three as arguments.
"""

from __future__ import annotations


class RuedaError(Exception):
    """The root: a mistake that the user can mend, told in one line.

    >>> WorldError("WORLD_SIZE", expected="a positive whole number", got="two", do="unset it or correct it")
    WorldError("WORLD_SIZE: expected a positive whole number, got 'two'; unset it or correct it")
    """

    exit_status = 2
    """of a command that this error ends"""

    def __init__(
        self, message: object = "", *more: object, expected: str = "", got: object = None, do: str = ""
    ) -> None:
        super().__init__(explain(str(message), expected=expected, got=got, do=do) if expected else message, *more)


class WorldError(RuedaError):
    """The workers cannot find each other, or the environment contradicts itself."""


class LaunchError(WorldError):
    """A script, a host or a slot that cannot be started."""


class TaskError(RuedaError):
    """A task cannot be loaded or does not fit together."""


class DataError(RuedaError):
    """A data set is missing, torn, corrupt or of the wrong shape."""


class RecipeError(RuedaError):
    """A recipe contradicts itself or cannot be read."""


class NonFiniteError(RuedaError):
    """A gradient or a weight holds NaN or inf; its tensor was left as it was."""


class RunError(RuedaError):
    """A run folder cannot be written or read."""


class CheckpointError(RunError):
    """A checkpoint is torn, corrupt or belongs to another model."""


class ProfileError(RuedaError):
    """A profile or a cluster cannot be read, or says too little for a plan."""


class JobError(RuedaError):
    """A process that was started for a job ended without its answer; the command ends with the process's status."""

    def __init__(self, message: str, exit_status: int = 1) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class ExamineError(RuedaError):
    """A model, a direction or a loader does not allow what was asked about its landscape."""


class MissingExtra(RuedaError):
    """An optional package is needed that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is needed but not installed: run `pip install 'rueda[{extra}]'`")


def explain(what: str, *, expected: str, got: object, do: str) -> str:
    """Write a message that says what was expected, what came and what to do.

    >>> explain("WORLD_SIZE", expected="a positive whole number", got="two", do="unset it or correct it")
    "WORLD_SIZE: expected a positive whole number, got 'two'; unset it or correct it"
    """
    return f"{what}: expected {expected}, got {got!r}; {do}"
