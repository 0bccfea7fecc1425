"""The exceptions that Rueda raises, as a tree.

::

    RuedaError                 every error that Rueda raises on purpose
    ├── WorldError             the workers: a wrong environment, a rendezvous that times out
    │   ├── LaunchError        a script, host or slot that cannot be started
    │   ├── PeerError          another worker has failed, and its own error says why
    │   └── PeerLost           a worker of an elastic job is gone: the others form a new world
    ├── TaskError              a task that cannot be loaded or does not fit together
    ├── DataError              a data set that is missing, corrupt or of the wrong shape
    ├── RecipeError            a recipe that contradicts itself or cannot be read
    ├── NonFiniteError         a gradient or weight that is NaN or infinite, found by an optimizer
    ├── RunError               a run folder that cannot be written or read
    │   └── CheckpointError    a checkpoint that is corrupt or belongs to another model
    ├── ProfileError           a profile or a cluster that cannot be read, or is not sufficient for a plan
    ├── JobError               a process that was started for a job ended without a result
    │   └── JobTimeout         it did not end in time
    ├── ScaleError             a serial script that cannot be run on many workers
    ├── AssessError            a submission, key or certificate that cannot be read, or settings that contradict
    ├── ExamineError           a model, direction or loader whose landscape or curvature cannot be computed
    ├── LabError               a lab, a question or an exercise that does not exist or cannot be shown
    └── MissingExtra           an optional package is needed; the message names the pip command

The commands print such an error as one line and end with its ``exit_status``: 2, or that of the process that failed
(JobError). A message says what was expected, what was given, and what to do; every error takes these as arguments.
"""

from __future__ import annotations

from collections.abc import Iterable


class RuedaError(Exception):
    """The base class of all errors: a mistake that the user can correct, reported in one line.

    >>> WorldError("WORLD_SIZE", expected="a positive whole number", got="two", do="unset it or correct it")
    WorldError("WORLD_SIZE: expected a positive whole number, got 'two'; unset it or correct it")

    Args:
        message: the whole message, or, with ``expected``, what the message is about.
        more: further arguments of the exception, as of any other in Python.
        expected: what would have been right.
        got: what was found instead.
        do: what the user should do.
    """

    exit_status = 2
    """exit status of a command that ends with this error"""

    def __init__(
        self, message: object = "", *more: object, expected: str = "", got: object = None, do: str = ""
    ) -> None:
        super().__init__(explain(str(message), expected=expected, got=got, do=do) if expected else message, *more)


class WorldError(RuedaError):
    """The workers cannot find each other, or the environment contradicts itself."""


class LaunchError(WorldError):
    """A script, a host or a slot cannot be started."""


class PeerError(WorldError):
    """Another worker, for which this one has waited, has failed; its own error says why."""


class PeerLost(WorldError):
    """Another worker of an elastic job is gone, or the world is broken; :func:`rueda.world.elastic.reform` goes on."""


class TaskError(RuedaError):
    """A task cannot be loaded or does not fit together."""


class DataError(RuedaError):
    """A data set is missing, corrupt or of the wrong shape."""


class RecipeError(RuedaError):
    """A recipe contradicts itself or cannot be read."""


class NonFiniteError(RuedaError):
    """A gradient or a weight contains NaN or infinity; the parameters were not changed."""


class RunError(RuedaError):
    """A run folder cannot be written or read."""


class CheckpointError(RunError):
    """A checkpoint is corrupt or belongs to another model."""


class ProfileError(RuedaError):
    """A profile or a cluster cannot be read, or is not sufficient for a plan."""


class JobError(RuedaError):
    """A process that was started for a job ended without a result; the command ends with the process's exit status."""

    def __init__(self, message: str, exit_status: int = 1) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class JobTimeout(JobError):
    """A process that was started for a job did not end in the time that its caller gave it, and was killed."""


class ScaleError(RuedaError):
    """A serial script cannot be run on many workers, or not with these options."""


class AssessError(RuedaError):
    """A submission, a key or a certificate cannot be read, or the settings of an assessment contradict each other."""


class ExamineError(RuedaError):
    """The landscape or curvature of a model cannot be computed as requested."""


class LabError(RuedaError):
    """A lab, a question or an exercise does not exist or cannot be shown."""


class MissingExtra(RuedaError, ImportError):
    """An optional package is needed but not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is needed but not installed: run `pip install 'rueda[{extra}]'`")


def explain(what: str, *, expected: str, got: object, do: str) -> str:
    """Return a message that says what was expected, what was given and what to do.

    >>> explain("WORLD_SIZE", expected="a positive whole number", got="two", do="unset it or correct it")
    "WORLD_SIZE: expected a positive whole number, got 'two'; unset it or correct it"
    """
    return f"{what}: expected {expected}, got {got!r}; {do}"


def read_failure(error: Exception) -> str:
    """Return in plain words what was found instead of a readable file.

    >>> read_failure(FileNotFoundError(2, "No such file or directory", "plan.json"))
    'no such file'
    """
    kinds = {
        FileNotFoundError: "no such file",
        IsADirectoryError: "a folder",
        NotADirectoryError: "a path through a file that is no folder",
        PermissionError: "a file that may not be read",
        UnicodeDecodeError: "a file that is not text",
    }
    return kinds.get(type(error)) or getattr(error, "strerror", None) or str(error)


def suggest(got: str, known: Iterable[str], otherwise: str, cutoff: float = 0.6) -> str:
    """Return "did you mean X?" for the known name that is closest to a misspelt one, or the advice ``otherwise``.

    >>> suggest("bacth", ["batch", "rate"], "see the list"), suggest("x", ["batch", "rate"], "see the list")
    ('did you mean batch?', 'see the list')
    """
    import difflib

    close = difflib.get_close_matches(got, known, 1, cutoff)
    return f"did you mean {close[0]}?" if close else otherwise
