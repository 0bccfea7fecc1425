"""Opening a run: it is begun, resumed from a checkpoint, or continued after the workers of an elastic job changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rueda.files.remote import AnyPath
from rueda.records import Recipe, Run
from rueda.records.recipe.differences import describe_changes
from rueda.records.run import Incident
from rueda.terminal.numbers import things
from rueda.train.checkpoint import copy_as_step, remove_from
from rueda.train.generations import Generations, job_name
from rueda.train.resume import changed_file, check_same_recipe, check_same_task, read_for_all
from rueda.train.saving import Saver
from rueda.train.state import restore
from rueda.train.training import Training


class Opening(NamedTuple):
    """How a training begins."""

    resumes: bool = False
    """whether an earlier process began it"""
    continues: bool = False
    """whether it is the next generation of an elastic job"""
    remarks: Sequence[str] = ()
    """lines about what differs from the training that is resumed"""
    incident: Incident | None = None
    """the change of the workers, in an elastic job"""

    def title(self, training: Training) -> str:
        """Return what is trained, on how many workers, and from where it continues."""
        workers = things(training.world.size, "worker")
        if training.rehearsed:
            workers = f"{things(training.recipe.workers, 'rehearsed worker')} in one process"
        where = ""
        if self.resumes:
            epoch, step = training.state.epoch, training.state.step
            where = f", resuming at epoch {epoch + 1}, step {step:,}"
            where = ", already trained to its end" if training.is_over else where
        return f"{training.task.name} on {workers}{where}"


def open_run(training: Training, run: Run, resume: str | None) -> Opening:
    """Begin a new run folder, or restore the training from an existing one; every worker must call it.

    Nothing is written before all that is there was read and found to fit.

    Args:
        training: the training.
        run: the folder.
        resume: which checkpoint to continue from: ``last``, ``best`` or a step; None begins a new run.
    """
    world = training.world
    world.on_main(lambda: run.check_folder(resume=resume is not None))
    found, remarks = None, list[str]()
    if resume is not None:
        world.on_main(check_same_task, run, training.task)
        found = read_for_all(world, run.checkpoints, resume)
    if found is not None:
        check_same_recipe(found[0], training.given_recipe, found[1])
        restore(training, *found)
        former = Recipe.from_toml(found[1]["recipe"])
        if former != training.given_recipe:
            changes = describe_changes(former, training.given_recipe)
            training.updater.remarks.append(f"the recipe changes from update {training.state.step:,} on: {changes}")
        remarks = world.on_main(changed_file, run, training.task)
    world.on_main(_begin_files, training, run, None if found is None else found[0])
    return Opening(resumes=found is not None, remarks=remarks)


def continue_run(training: Training, run: Run | None, saver: Saver, generations: Generations) -> Opening:
    """Continue from the last commit of an elastic job, in a new generation; every worker must call it.

    Without any commit, since the first generation was lost before it had made one, the training begins anew.
    """
    found = saver.last_commit()
    if found is not None:
        restore(training, *found)
    if run is not None:
        training.world.on_main(_begin_files, training, run, None)
    return Opening(resumes=True, continues=True, incident=generations.incident(training))


def _begin_files(training: Training, run: Run, resumed: AnyPath | None) -> None:
    """Write the files of the run; remove the rows and checkpoints behind the one that it is resumed from."""
    state, task = training.state, training.task
    if resumed is not None:
        # Checkpoints first: a process that is killed in between resumes from this one and removes the rows then.
        remove_from(run.checkpoints, state.step, but=copy_as_step(resumed, state.step))
    if run.metrics_file.exists():
        run.forget_after(state.step, state.epoch)
    run.begin(
        training.given_recipe, task.name, task_file=task.file, rehearsed=training.rehearsed, from_step=state.step,
        job=job_name(),
    )  # fmt: skip
