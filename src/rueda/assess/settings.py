"""What a submission is graded by: the task and its data, the workers, the target and the time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rueda.errors import AssessError

DATA_SETS = {"glyphs": 0.85, "fashion-mnist": 0.85, "cifar-10": 0.55}
"""the data sets of the task, with the accuracy that is asked for by default"""
MOST_BYTES = 32_768
"""of a script"""
MOST_PACKED = 4096
"""of a script, compressed: less than two bits for each of the model's 17,000 weights"""
PREPARATION = 30.0
"""seconds that a script has before its first training step, without being counted"""
PREPARATION_COMPUTING = 3.0
"""seconds of processor time that it has meanwhile: enough to read data, and not to train in secret"""


@dataclass(frozen=True, kw_only=True)
class TaskData:
    """The data of a task.

    Args:
        name: ``glyphs``, which is generated and needs no network, ``fashion-mnist`` or ``cifar-10``.
        num_train: training examples that the script gets; 0: all there are.
        num_validation: validation examples that the script gets.
        num_held_out: examples that only the grader has; of a published set at most its test examples.
    """

    name: str = "glyphs"
    num_train: int = 0
    num_validation: int = 2000
    num_held_out: int = 4000

    def __post_init__(self) -> None:
        if self.name not in DATA_SETS:
            raise AssessError("--data", expected=", ".join(DATA_SETS), got=self.name, do="choose one of them")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a submission is graded.

    Args:
        data: the data of the task.
        workers: number of workers.
        target_accuracy: to be reached on the grader's own examples.
        patience: in so many consecutive epochs.
        within: seconds of training.
    """

    data: TaskData
    workers: int = 2
    target_accuracy: float = 0.85
    patience: int = 2
    within: float = 300.0

    def __post_init__(self) -> None:
        for name, holds, expected, got in (
            ("-np", self.workers >= 2, "2 or more workers: the task is to train on several", self.workers),
            ("--target-accuracy", 0 < self.target_accuracy < 1, "a fraction between 0 and 1", self.target_accuracy),
            ("--patience", self.patience >= 1, "1 epoch or more", self.patience),
            ("--within", self.within > 0, "a number of seconds", self.within),
        ):
            if not holds:
                raise AssessError(name, expected=expected, got=got, do="correct it")


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A script that was handed in."""

    learner: str
    file: Path
    text: bytes
    others: tuple[str, ...] = ()
    """files beside it, which are not taken"""


def read_submission(file: Path, learner: str = "") -> Submission:
    """Read a script: a file, or ``train.py`` in a folder.

    Raises:
        AssessError: there is none, or it cannot be a script.
    """
    if file.is_dir():
        file, learner = file / "train.py", learner or file.name
    if file.suffix != ".py":
        raise AssessError("the script", expected="a Python script such as train.py", got=str(file), do="name it")
    try:
        text = file.read_bytes()
    except OSError as error:
        raise AssessError(str(file), expected="a script", got=error.strerror, do="correct the path") from None
    given = {"task.py", "data.npz", "README.md", "__pycache__", file.name}
    folder = file.absolute().parent
    others = sorted(one.name for one in folder.iterdir() if one.name not in given) if file.name == "train.py" else []
    name = file.stem if file.stem != "train" else folder.name
    return Submission(learner=learner or name, file=file, text=text, others=tuple(others[:20]))
