"""``rueda.fit(..., workers=N)`` in a script or a notebook: training in N processes that :mod:`rueda.jobs` starts.

The workers load a task by its name or from its file. A :class:`~rueda.tasks.Task` object is sent to them pickled by
value with cloudpickle, since functions that were defined in a notebook or a script cannot be imported elsewhere. The
trained model comes back through the last checkpoint of the run.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rueda import jobs
from rueda.errors import TaskError
from rueda.records import Recipe, Run
from rueda.tasks import Task, load_task
from rueda.train.checkpoint import latest_checkpoint
from rueda.train.layout import parameter_dtype
from rueda.train.loop import Result
from rueda.train.normalisation import convert
from rueda.train.request import SCRATCH_PREFIX, TrainAnswer, TrainRequest, train_job
from rueda.train.state import evaluated_weights
from rueda.world.seeds import seed_model


def fit_on_workers(
    task: Task | str, recipe: Recipe, *, folder: Path | None, resume: bool, resume_from: str, progress: bool,
    track: tuple[str, ...], checkpoints: str | None = None,
) -> Result:  # fmt: skip
    """Train on ``recipe.workers`` new processes of this machine; the arguments are those of :func:`rueda.fit`."""
    with TemporaryDirectory(prefix=SCRATCH_PREFIX) as scratch:
        name, pickled = task if isinstance(task, str) else task.name, None
        if not isinstance(task, str):
            pickled = Path(scratch, "task.pickle")
            write_task(task, pickled)
        run = Run(folder or Path(scratch, "run"), checkpoint_folder=checkpoints)
        request = TrainRequest(
            task=name, pickled_task=pickled, recipe=recipe, folder=run.folder, resume=resume,
            resume_from=resume_from, track=track, progress=progress, checkpoints=checkpoints,
        )  # fmt: skip
        signal = None
        try:
            answer = jobs.run(train_job(request), workers=recipe.workers)
        except jobs.Stopped as stopped:
            answer, signal = TrainAnswer(folder=run.folder, status="interrupted"), stopped.signal
        found = latest_checkpoint(run.checkpoints)
        if found is None and answer.status != "diverged":  # stopped before the first step
            raise jobs.Stopped(*([signal] if signal else []))
        seed_model(recipe.seed)  # the model of a run that diverged before its first checkpoint is the initial one
        model = convert((load_task(task) if isinstance(task, str) else task).build(recipe), recipe)
        model.to(parameter_dtype(recipe))
        if found is not None:
            model.load_state_dict(evaluated_weights(found[1]))
        rows, scales = run.rows("epoch"), run.noise_scales()
        return Result(
            status=answer.status, row=rows[-1] if rows else None, model=model, recipe=run.recipe(), folder=folder,
            signal=signal, noise_scale=scales[-1] if scales else None, divergence=answer.divergence or None,
        )  # fmt: skip


def write_task(task: Task, file: Path) -> None:
    """Pickle a task for the workers, together with the folders from which this process imports modules.

    Raises:
        TaskError: cloudpickle is not installed, or the task holds something that cannot be pickled.
    """
    instead = "define the task in a file and pass its path to fit"
    try:
        import cloudpickle
    except ImportError:
        raise TaskError(
            f"task {task.name} must be pickled for its workers: pip install cloudpickle, or {instead}"
        ) from None
    try:
        if task.file is not None:  # its module is known to this process only
            cloudpickle.register_pickle_by_value(sys.modules[f"rueda_task_{Path(task.file.path).stem}"])
        file.write_bytes(cloudpickle.dumps(sys.path) + cloudpickle.dumps(task))
    except Exception as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise TaskError(f"task {task.name} cannot be pickled for its workers ({first_line}); {instead}") from None


def read_task(file: Path) -> Task:
    """Read a task that :func:`write_task` wrote in another process."""
    with open(file, "rb") as stream:
        sys.path[:] = pickle.load(stream)
        task: Task = pickle.load(stream)
        return task
