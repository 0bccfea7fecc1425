"""The job of ``rueda examine``: all workers compute landscape and curvature of the models; rank 0 writes the records.

::

    RUN/landscape.json, RUN/curvature.json          of one model: in its run folder, or where --folder says
    FOLDER/landscape.json, FOLDER/curvature.json    of several models: all of them side by side
    .points/                                        the points computed so far, until the records are written
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
from rueda.examine.loading import TrainedModel, load_model
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
    """Load the models, compute what the request names and write the records; every worker must call it."""
    examine_models(request, load_models(request), open_world())
    return ExamineAnswer()


def load_models(request: ExamineRequest) -> list[TrainedModel]:
    """Load the models, which must all belong to the same task."""
    task = None if request.task is None else load_task(request.task)
    models = [
        load_model(request.located(path), task=task, settings=request.settings, checkpoint=request.checkpoint)
        for path in request.paths
    ]
    tasks = sorted({trained.task.name for trained in models})
    if len(tasks) > 1:
        raise ExamineError(
            "the runs", expected="one task", got=", ".join(tasks), do="examine the runs of one task at a time"
        )
    return with_unique_names(models)


def with_unique_names(models: Sequence[TrainedModel]) -> list[TrainedModel]:
    """Make the names of models unique: runs of two studies get their number of workers, or else a counter."""
    counts: dict[str, set[int]] = {}
    for trained in models:
        counts.setdefault(trained.condition, set()).add(trained.recipe.workers)
    seen: Counter[str] = Counter()
    found = []
    for trained in models:
        several = len(counts[trained.condition]) > 1
        name = f"{trained.name}, {trained.recipe.workers} workers" if several else trained.name
        seen[name] += 1
        found.append(replace(trained, name=name if seen[name] == 1 else f"{name} ({seen[name]})"))
    return found


def estimate_seconds(request: ExamineRequest, models: Sequence[TrainedModel]) -> float:
    """Time one point, and estimate the seconds of all points on one worker."""
    objectives = models[0].objectives(request.splits, num_examples=request.num_examples)
    began = time.perf_counter()
    for objective in objectives.values():
        objective.values()
    return (time.perf_counter() - began) * request.landscape.num_points() * len(models)


def examine_models(request: ExamineRequest, models: Sequence[TrainedModel], world: World) -> None:
    """Compute landscape and curvature of loaded models and write the records; every worker must call it."""
    folder = request.result_folder()
    task = models[0].task.name
    landscape_members: list[landscapes.ModelLandscape] = []
    curvature_members: list[curvatures.ModelCurvature] = []
    known = world.broadcast_object(_known(folder) if world.is_main else {})
    for index, trained in enumerate(models):
        objectives = trained.objectives(request.splits, num_examples=request.num_examples, device=world.device)
        points = folder / ".points" / f"{index}-{trained.name}"
        if request.landscape.pictures:
            execution = Execution(world=world, folder=points, progress=request.progress)
            pictures = [name for name in request.landscape.pictures if name != "interpolation" or index == 0]
            wanted = replace(request.landscape, pictures=tuple(pictures))
            landscape_members.append(
                compute_pictures(trained, objectives, wanted, other=models[-1], execution=execution)
            )
        if request.sharpness or request.hessian:
            curvature_members.append(_curvature(request, trained, objectives, world, known))
            if world.is_main:  # after each model, so that a stopped command loses at most the current one
                later = [old for old in known.values() if all(_key(old) != _key(new) for new in curvature_members)]
                _write_curvature(request, task, curvature_members + (later if index + 1 < len(models) else []))
    if world.is_main:
        _write_landscape(request, task, landscape_members)
        shutil.rmtree(folder / ".points", ignore_errors=True)
    world.barrier()


Known = dict[tuple[str, "int | None", str, str], curvatures.ModelCurvature]


def _key(member: curvatures.ModelCurvature) -> tuple[str, int | None, str, str]:
    return member.name, member.seed, member.split, member.weights


def _known(folder: Path) -> Known:
    """Read the results of an earlier command in this folder."""
    try:
        return {_key(member): member for member in Curvature.load(folder / Curvature.FILE).members}
    except RunError:  # there is no file yet, or it is damaged: it is written again
        return {}


def _curvature(
    request: ExamineRequest, trained: TrainedModel, objectives: Objectives, world: World, known: Known
) -> curvatures.ModelCurvature:
    """Compute sharpness and Hessian as requested; keep what an earlier command has computed."""
    split, objective = next(iter(objectives.items()))
    seed = request.landscape.seed
    row = _row(trained)
    member = curvatures.ModelCurvature(
        name=trained.condition, seed=trained.recipe.seed, split=split, workers=trained.workers,
        train_accuracy=None if row is None else row.train_accuracy, weights=checksum(objective.origin),
        test_accuracy=None if row is None else row.test_accuracy, rehearsed=trained.rehearsed,
    )  # fmt: skip
    old = known.get(_key(member), member)
    same = (objective.num_examples, seed)
    hessian_found, sharpness_found = old.hessian, old.sharpness
    if request.hessian and (
        hessian_found is None
        or (hessian_found.examples, hessian_found.seed) != same
        or hessian_found.groups is None  # an older record, without the sampling errors
        or (request.density and hessian_found.density is None)
    ):
        with _stage_progress(request, world, f"{trained.name}, hessian") as tell:
            hessian_found = hessian(objective, density=request.density, seed=seed, world=world, progress=tell)
    if request.sharpness and (sharpness_found is None or (sharpness_found.examples, sharpness_found.seed) != same):
        with _stage_progress(request, world, f"{trained.name}, sharpness") as tell:
            sharpness_found = sharpness(objective, seed=seed, world=world, progress=tell)
    return replace(member, hessian=hessian_found, sharpness=sharpness_found)


def _row(trained: TrainedModel) -> Row | None:
    """Return the metrics row of the examined checkpoint, if there is one."""
    rows = [] if trained.run is None else trained.run.rows("epoch")
    return next((row for row in reversed(rows) if row.step == trained.step), None)


def _write_landscape(request: ExamineRequest, task: str, found: list[landscapes.ModelLandscape]) -> None:
    if not found:
        return
    about, file = environment(), request.result_folder() / Landscape.FILE
    with suppress(RunError):  # there is no file yet, or it is damaged: it is written again
        old = {member.name: member for member in Landscape.load(file).members}
        found = [member.with_old(old[member.name]) if member.name in old else member for member in found]
    Landscape(task=task, members=tuple(found), command=about["command"], environment=about).save(file)


def _write_curvature(request: ExamineRequest, task: str, found: Sequence[curvatures.ModelCurvature]) -> None:
    about, file = environment(), request.result_folder() / Curvature.FILE
    Curvature(task=task, members=tuple(found), command=about["command"], environment=about).save(file)


@contextmanager
def _stage_progress(request: ExamineRequest, world: World, title: str) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a callback that shows a progress bar for each stage of a computation."""
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
