"""An examination as a job: landscape and curvature of several models, computed by all workers; rank 0 writes.

::

    RUN/landscape.json, RUN/curvature.json          of one model: in its run folder, or where --folder says
    FOLDER/landscape.json, FOLDER/curvature.json    of several models: all of them side by side
    .points/                                        points as they come, until the records are written
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from rueda.errors import ExamineError, RunError
from rueda.examine.curvature.hessian import hessian
from rueda.examine.curvature.sharpness import sharpness
from rueda.examine.landscape.grid import Execution, Objectives
from rueda.examine.landscape.pictures import compute_pictures
from rueda.examine.loading import Subject, load_subject
from rueda.examine.objective.objective import checksum
from rueda.examine.request import ExamineAnswer, ExamineRequest
from rueda.records import Row
from rueda.records import curvature as curvatures
from rueda.records import landscape as landscapes
from rueda.records.curvature import Curvature
from rueda.records.environment import environment
from rueda.records.landscape import Landscape
from rueda.tasks.loading import load_task
from rueda.terminal.points import PointsProgress
from rueda.world import World, open_world


def examine(request: ExamineRequest) -> ExamineAnswer:
    """Load the models, compute and write everything; all workers call it."""
    examine_subjects(request, load_subjects(request), open_world())
    return ExamineAnswer()


def load_subjects(request: ExamineRequest) -> list[Subject]:
    """Load the models; they must belong to one task."""
    task = None if request.task is None else load_task(request.task)
    subjects = [
        load_subject(request.located(path), task=task, settings=request.settings, checkpoint=request.checkpoint)
        for path in request.paths
    ]
    tasks = sorted({subject.task.name for subject in subjects})
    if len(tasks) > 1:
        raise ExamineError(
            "the runs", expected="one task", got=", ".join(tasks), do="examine those of one task at a time"
        )
    return told_apart(subjects)


def told_apart(subjects: Sequence[Subject]) -> list[Subject]:
    """Give models of one name (runs of two studies) names of their own: by their workers, or else by a number."""
    counts: dict[str, set[int]] = {}
    for subject in subjects:
        counts.setdefault(subject.condition, set()).add(subject.recipe.workers)
    seen: Counter[str] = Counter()
    found = []
    for subject in subjects:
        several = len(counts[subject.condition]) > 1
        name = f"{subject.name}, {subject.recipe.workers} workers" if several else subject.name
        seen[name] += 1
        found.append(replace(subject, name=name if seen[name] == 1 else f"{name} ({seen[name]})"))
    return found


def estimate_seconds(request: ExamineRequest, subjects: Sequence[Subject]) -> float:
    """Estimate the seconds of all points on one worker, from one point."""
    objectives = subjects[0].objectives(request.splits, num_examples=request.num_examples)
    began = time.perf_counter()
    for objective in objectives.values():
        objective.values()
    return (time.perf_counter() - began) * request.landscape.num_points() * len(subjects)


def examine_subjects(request: ExamineRequest, subjects: Sequence[Subject], world: World) -> None:
    """Compute and write everything about models that are loaded already; all workers call it."""
    folder = request.result_folder()
    task = subjects[0].task.name
    seen: list[landscapes.Member] = []
    felt: list[curvatures.Member] = []
    known = world.broadcast_object(_known(folder) if world.is_main else {})
    for index, subject in enumerate(subjects):
        objectives = subject.objectives(request.splits, num_examples=request.num_examples, device=world.device)
        points = folder / ".points" / f"{index}-{subject.name}"
        if request.landscape.pictures:
            execution = Execution(world=world, folder=points, progress=request.progress)
            pictures = [name for name in request.landscape.pictures if name != "interpolation" or index == 0]
            wanted = replace(request.landscape, pictures=tuple(pictures))
            seen.append(compute_pictures(subject, objectives, wanted, other=subjects[-1], execution=execution))
        if request.sharpness or request.hessian:
            felt.append(_curvature(request, subject, objectives, world, known))
            if world.is_main:  # after each model: a command that was stopped has lost the one under way at most
                later = [old for old in known.values() if all(_key(old) != _key(new) for new in felt)]
                _write_curvature(request, task, felt + (later if index + 1 < len(subjects) else []))
    if world.is_main:
        _write_landscape(request, task, seen)
        shutil.rmtree(folder / ".points", ignore_errors=True)
    world.barrier()


Known = dict[tuple[str, "int | None", str, str], curvatures.Member]


def _key(member: curvatures.Member) -> tuple[str, int | None, str, str]:
    return member.name, member.seed, member.split, member.weights


def _known(folder: Path) -> Known:
    """Read what an earlier command has found in this folder."""
    try:
        return {_key(member): member for member in Curvature.load(folder / curvatures.FILE).members}
    except RunError:  # none yet, or a damaged one: written anew
        return {}


def _curvature(
    request: ExamineRequest, subject: Subject, objectives: Objectives, world: World, known: Known
) -> curvatures.Member:
    """Compute what is asked for and not known yet."""
    split, objective = next(iter(objectives.items()))
    seed = request.landscape.seed
    row = _row(subject)
    member = curvatures.Member(
        name=subject.condition, seed=subject.recipe.seed, split=split, workers=subject.workers,
        train_accuracy=None if row is None else row.train_accuracy, weights=checksum(objective.origin),
        test_accuracy=None if row is None else row.test_accuracy, rehearsed=subject.rehearsed,
    )  # fmt: skip
    old = known.get(_key(member), member)
    same = (objective.num_examples, seed)
    hessian_found, sharpness_found = old.hessian, old.sharpness
    if request.hessian and (
        hessian_found is None
        or (hessian_found.examples, hessian_found.seed) != same
        or (request.density and hessian_found.density is None)
    ):
        with _told(request, world, f"{subject.name}, hessian") as tell:
            hessian_found = hessian(objective, density=request.density, seed=seed, world=world, progress=tell)
    if request.sharpness and (sharpness_found is None or (sharpness_found.examples, sharpness_found.seed) != same):
        with _told(request, world, f"{subject.name}, sharpness") as tell:
            sharpness_found = sharpness(objective, seed=seed, world=world, progress=tell)
    return replace(member, hessian=hessian_found, sharpness=sharpness_found)


def _row(subject: Subject) -> Row | None:
    """Give the row of metrics of the examined checkpoint, if there is one."""
    rows = [] if subject.run is None else subject.run.rows("epoch")
    return next((row for row in reversed(rows) if row.step == subject.step), None)


def _write_landscape(request: ExamineRequest, task: str, found: list[landscapes.Member]) -> None:
    if not found:
        return
    about, file = environment(), request.result_folder() / landscapes.FILE
    with suppress(RunError):  # none yet, or a damaged one: written anew
        old = {member.name: member for member in Landscape.load(file).members}
        found = [member.with_old(old[member.name]) if member.name in old else member for member in found]
    Landscape(task=task, members=tuple(found), command=about["command"], environment=about).save(file)


def _write_curvature(request: ExamineRequest, task: str, found: Sequence[curvatures.Member]) -> None:
    about, file = environment(), request.result_folder() / curvatures.FILE
    Curvature(task=task, members=tuple(found), command=about["command"], environment=about).save(file)


@contextmanager
def _told(request: ExamineRequest, world: World, title: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show the stages of one computation, a bar a stage."""
    with ExitStack() as stack:
        bars: dict[str, PointsProgress] = {}

        def tell(what: str, done: int, most: int) -> None:
            if what not in bars:
                stack.close()
                speak = request.progress and world.is_main
                bars[what] = PointsProgress(speak=speak, description=f"{title}, {what}", total=most)
                stack.enter_context(bars[what])
            if bars[what].due:
                bars[what].show(done)

        yield tell
