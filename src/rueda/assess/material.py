"""The folder of the task: the serial script, the data that a script gets, and the task as text."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from rueda import jobs
from rueda.assess.settings import MOST_BYTES, MOST_PACKED, PREPARATION, PREPARATION_COMPUTING, Settings, TaskData
from rueda.errors import AssessError
from rueda.files.atomic import write_atomically

DATA = "data.npz"


@dataclass(frozen=True, kw_only=True)
class DataRequest:
    """Which data are written where."""

    data: TaskData
    file: Path


@dataclass(frozen=True, kw_only=True)
class DataAnswer:
    """What was written."""

    num_train: int
    num_validation: int


def material(name: str) -> bytes:
    """Return a file of the task: ``task``, ``train`` or ``reference``."""
    return files("rueda.assess").joinpath(f"material/{name}.py.txt").read_bytes()


def new_task(folder: Path, settings: Settings, tell: Callable[[str], None] = lambda text: None) -> None:
    """Make the folder that a learner begins with.

    Args:
        folder: the folder.
        settings: what is asked for.
        tell: is called when the work begins.

    Raises:
        AssessError: the folder holds something already.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise AssessError("--new", expected="a folder that does not exist yet", got=str(folder), do="name another one")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AssessError(
            "--new", expected="a folder that can be made", got=error.strerror, do="name another"
        ) from None
    tell("preparing the data")
    written = write_data(settings.data, folder / DATA)
    write_atomically(folder / "task.py", material("task"))
    write_atomically(folder / "README.md", _text(settings, written).encode())
    write_atomically(folder / "train.py", material("train"))  # last: the folder is complete once it is there


def write_data(data: TaskData, file: Path) -> DataAnswer:
    """Write the training and validation examples of a task, in another process, since that loads torch."""
    job = jobs.Job(function=f"{__name__}:write_here", request=DataRequest(data=data, file=file), answer=DataAnswer)
    return jobs.run(job, show=True)


def write_here(request: DataRequest) -> DataAnswer:
    """Write the examples: the task's part of the training split, and validation examples that are not in it."""
    import numpy as np

    from rueda.assess.examples import given

    train, validation = given(request.data)
    shape = (1, train.inputs.shape[1], 1, 1)
    part = request.file.with_suffix(".part.npz")
    try:
        np.savez(
            part, train_images=train.inputs.numpy(), train_labels=train.targets.numpy(),
            validation_images=validation.inputs.numpy(), validation_labels=validation.targets.numpy(),
            mean=np.asarray(train.mean, dtype=np.float32).reshape(shape),
            std=np.asarray(train.std, dtype=np.float32).reshape(shape),
        )  # fmt: skip
        os.replace(part, request.file)
    except OSError as error:
        part.unlink(missing_ok=True)
        do = "free space or choose another folder"
        raise AssessError(str(request.file), expected="a file that can be written", got=error.strerror, do=do) from None
    return DataAnswer(num_train=len(train), num_validation=len(validation))


def _text(settings: Settings, written: DataAnswer) -> str:
    percent = f"{100 * settings.target_accuracy:g} %"
    data = "" if settings.data.name == TaskData().name else f" --data {settings.data.name}"
    return f"""# Train on several workers

`train.py` trains a small convolutional network on one worker. Make it train on several, and keep its accuracy.

    rueda run -np {settings.workers} train.py      # try it
    rueda check -np {settings.workers} train.py    # find mistakes
    rueda assess train.py -np {settings.workers} --target-accuracy {settings.target_accuracy:g} \
--patience {settings.patience} --within {settings.within:g}{data}

The last command grades it, as your teacher will.

## What is asked

1. All workers train one model together: each on its own share of the {written.num_train:,} training examples, with
   gradients averaged over the workers at every step.
2. After each epoch, one worker saves the model: `torch.save(model.state_dict(), "epoch-1.pt")`, then `epoch-2.pt`, and
   so on, in the current folder. An epoch is one pass over the training examples by all workers together.
3. The model reaches an accuracy of {percent} in {settings.patience} consecutive epochs, on examples that neither you
   nor your script have seen. What your script prints is not read.
4. The last of them is saved at most {settings.within:g} seconds after the first training step. The grader measures
   that. Reading data before the first step does not count, up to {PREPARATION:g} seconds, of which
   {PREPARATION_COMPUTING:g} of processor time.

## Rules

- Hand in `train.py` alone, of at most {MOST_BYTES // 1024} KiB, or {MOST_PACKED // 1024} KiB when compressed. `task.py`
  and `data.npz` are the grader's own when it runs. There is no network, and nothing but the current folder can be
  written.
- The model is `task.model()`, with its random weights. Save the weights as your optimizer's last step left them,
  without averages over steps.
- Train on `task.examples("train")` only. You may shift, flip, crop or add noise. The {written.num_validation:,}
  validation examples are for looking, not for training.
- Any library for several workers will do: `torch.distributed`, Horovod's interface, Rueda. Use a `torch.optim`
  optimizer or one with its interface.
- Do not change torch, Rueda or Python's own modules.

## Where to look

The labs 2 (data parallelism) and 3 (scaling the batch) have all the steps. A larger batch needs another rate.
"""
