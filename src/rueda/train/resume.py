"""Resuming: how a checkpoint reaches all workers, and what may differ from the training that wrote it.

Rank 0 reads the checkpoint, verifies it and broadcasts its bytes. So all workers continue from the same one, also
where each machine has a disk of its own and only rank 0's holds the run.
"""

from __future__ import annotations

from typing import Any

from rueda.errors import CheckpointError, RunError
from rueda.files.remote import AnyPath
from rueda.records import Recipe, Run
from rueda.records.recipe.differences import describe_differences
from rueda.tasks import Task
from rueda.train.checkpoint import parse_checkpoint, read_newest
from rueda.world import World

MAY_CHANGE = frozenset(
    (
        *("ema_decay", "workers", "batch", "accumulate", "largest_local_batch", "epochs", "keep_updates"),
        *("rate", "base_batch", "scaling", "warmup_epochs", "warmup", "schedule", "milestones", "decay", "power"),
        *("final_rate", "momentum", "nesterov", "betas", "weight_decay", "trust", "clip", "recalibrate"),
        *(
            "channels_last",
            "compile",
            "activation_checkpointing",
            "target_accuracy",
            "target",
            "target_metric",
            "patience",
            "on_divergence",
            "log_every",
        ),
        *("noise_scale_every", "noise_scale_memory", "noise_scale_groups"),
        *("checkpoint_every", "checkpoint_minutes", "keep", "asynchronous_checkpoints", "compare_every"),
        *("elastic_batch", "commit_every", "outer_rate", "outer_momentum"),
        *("parallel", "pipeline_schedule", "micro_batches"),
    )
)
"""fields of the recipe that may differ from those of the checkpoint; any other one would make it another training"""


def read_for_all(world: World, folder: AnyPath, wanted: str = "last") -> tuple[AnyPath, dict[str, Any]] | None:
    """Read a checkpoint on rank 0 and return its file and contents on all workers, which must all call this function.

    The arguments besides ``world``, the errors and the result without a checkpoint are those of
    :func:`rueda.train.checkpoint.read_newest`; only rank 0's disk needs to hold the folder.
    """
    found = world.on_main(read_newest, folder, wanted)
    return None if found is None else (found[0], parse_checkpoint(*found))


def check_same_recipe(file: AnyPath, now: Recipe, contents: dict[str, Any]) -> None:
    """Refuse to resume a checkpoint with a recipe that differs in a field that may not change.

    Raises:
        CheckpointError: it differs; the message names the fields. Or the checkpoint is not that of a training by a
            recipe.
    """
    if not isinstance(contents.get("recipe"), str):
        raise CheckpointError(
            f"{file}: expected a checkpoint of rueda train, got one of another program; resume it with the script that "
            "wrote it, or choose another folder"
        )
    was = Recipe.from_toml(contents["recipe"])
    fixed = now.changes_from(was).keys() - MAY_CHANGE
    if fixed:
        raise CheckpointError(
            f"{file} {describe_differences(was, now, fixed)}; resume with its own, or start a new run in another folder"
        )


def check_same_task(run: Run, task: Task) -> None:
    """Refuse to continue a run with another task, even if its model has the same shapes.

    Raises:
        RunError: the run's task has another name, or is defined by another file with other contents.
    """
    if not (run.folder / "environment.json").exists():
        return
    name, file = run.environment().get("task"), run.task_file()
    if name != task.name:
        was, now = name, task.name
    elif file is not None and task.file is not None and (file.path, file.sha256) != (task.file.path, task.file.sha256):
        if file.path == task.file.path or file.sha256 == task.file.sha256:  # edited since, or moved
            return
        was, now = file.path, task.file.path
    else:
        return
    raise RunError(
        f"{run.folder} was trained on task {was}, but now the request is {now}; "
        "resume with its own, or choose another folder"
    )


def changed_file(run: Run, task: Task) -> list[str]:
    """Return a line if the task file has changed since the run was trained; a file that only moved has not."""
    if not (run.folder / "environment.json").exists():
        return []
    file = run.task_file()
    if file is None or task.file is None or file.sha256 == task.file.sha256:
        return []
    return [f"note: {task.file.argument()} has changed since {run.folder} was trained"]
