"""An order, and its execution: several models, landscape and curvature, on all workers; what it finds is written.

::

    RUN/landscape.json, RUN/curvature.json          of one model: in its run folder, or where --folder says
    FOLDER/landscape.json, FOLDER/curvature.json    of several models: all of them side by side
    .points/                                        points as they come, until the records are written
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rueda.errors import ExamineError, RunError, explain
from rueda.examine.curvature.hessian import hessian
from rueda.examine.curvature.sharpness import sharpness
from rueda.examine.landscape.grid import Objectives, Work
from rueda.examine.landscape.look import Look, forget_points, look_at
from rueda.examine.loading import Subject, load_subject
from rueda.examine.objective.objective import checksum
from rueda.records import Row
from rueda.records import curvature as curvatures
from rueda.records import landscape as landscapes
from rueda.records.curvature import Curvature
from rueda.records.environment import environment
from rueda.records.landscape import Landscape
from rueda.terminal.points import PointsProgress
from rueda.world import World, open_world

SPLITS = ("train", "test")


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be examined, how, and where the result goes."""

    paths: tuple[Path, ...]
    look: Look = field(default_factory=Look)
    sharpness: bool = False
    hessian: bool = False
    density: bool = True
    """the spectral density, too, where the Hessian is asked for"""
    task: str | None = None
    settings: tuple[str, ...] = ()
    checkpoint: str = "last"
    num_examples: int | None = 1024
    splits: tuple[str, ...] = SPLITS
    folder: Path | None = None
    progress: bool = True
    command: str = ""
    """what the user typed, for the records"""

    def to_json(self) -> str:
        """Write it for the workers."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Order:
        """Read what :meth:`to_json` wrote."""
        data = json.loads(text)
        data["look"] = Look(**{**data["look"], "pictures": tuple(data["look"]["pictures"])})
        data["paths"] = tuple(Path(path) for path in data["paths"])
        data["folder"] = None if data["folder"] is None else Path(data["folder"])
        for name in ("settings", "splits"):
            data[name] = tuple(data[name])
        return cls(**data)

    def __post_init__(self) -> None:
        unknown = [name for name in self.splits if name not in SPLITS]
        if unknown or not self.splits or len(set(self.splits)) != len(self.splits):
            raise ExamineError(
                explain("--splits", expected="train, test or both", got=",".join(self.splits), do="correct it")
            )
        if "interpolation" in self.look.pictures and len(self.paths) != 2:
            raise ExamineError(
                explain("--interpolate", expected="two runs or checkpoints", got=len(self.paths), do="name two")
            )


def load(order: Order) -> list[Subject]:
    """Load the models; they must belong to one task."""
    subjects = [
        load_subject(path, task=order.task, settings=order.settings, checkpoint=order.checkpoint)
        for path in order.paths
    ]
    tasks = sorted({subject.task.name for subject in subjects})
    if len(tasks) > 1:
        raise ExamineError(
            explain("the runs", expected="one task", got=", ".join(tasks), do="examine those of one task at a time")
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


def place(order: Order) -> Path:
    """Give the folder of the result."""
    if order.folder is not None:
        return order.folder
    if len(order.paths) == 1:
        (path,) = order.paths
        return path if path.is_dir() else Path("runs", f"examine-{path.name.split('.')[0]}")
    return Path("runs", "examine-" + "-".join(path.resolve().name.split(".")[0] for path in order.paths)[:80])


def estimate(order: Order, subjects: Sequence[Subject]) -> float:
    """Estimate the seconds of all points on one worker, from one point."""
    objectives = subjects[0].objectives(order.splits, num_examples=order.num_examples)
    began = time.perf_counter()
    for objective in objectives.values():
        objective.values()
    return (time.perf_counter() - began) * order.look.num_points() * len(subjects)


def run_order(order: Order, subjects: Sequence[Subject], world: World | None = None) -> Path:
    """Compute and write everything; all workers must call it.

    Returns:
        The folder of the result.
    """
    world = world or open_world()
    folder = place(order)
    task = subjects[0].task.name
    seen: list[landscapes.Member] = []
    felt: list[curvatures.Member] = []
    known = world.broadcast_object(_known(folder) if world.is_main else {})
    for index, subject in enumerate(subjects):
        objectives = subject.objectives(order.splits, num_examples=order.num_examples, device=world.device)
        points = folder / ".points" / f"{index}-{subject.name}"
        if order.look.pictures:
            work = Work(world=world, folder=points, progress=order.progress)
            pictures = [name for name in order.look.pictures if name != "interpolation" or index == 0]
            look = replace(order.look, pictures=tuple(pictures))
            seen.append(look_at(subject, objectives, look, other=subjects[-1], work=work))
        if order.sharpness or order.hessian:
            felt.append(_curvature(order, subject, objectives, world, known))
            if world.is_main:  # after each model: a command that was stopped has lost the one under way at most
                later = [old for old in known.values() if all(_key(old) != _key(new) for new in felt)]
                _write_curvature(order, task, felt + (later if index + 1 < len(subjects) else []))
    if world.is_main:
        _write_landscape(order, task, seen)
        forget_points(folder / ".points")
    world.barrier()
    return folder


Known = dict[tuple[str, "int | None", str, str], curvatures.Member]


def _key(member: curvatures.Member) -> tuple[str, int | None, str, str]:
    return member.name, member.seed, member.split, member.weights


def _known(folder: Path) -> Known:
    """Read what an earlier command has found in this folder."""
    try:
        return {_key(member): member for member in Curvature.load(folder / curvatures.FILE).members}
    except RunError:  # none yet, or a damaged one: written anew
        return {}


def _curvature(order: Order, subject: Subject, objectives: Objectives, world: World, known: Known) -> curvatures.Member:
    """Compute what is asked for and not known yet."""
    split, objective = next(iter(objectives.items()))
    seed = order.look.seed
    row = _row(subject)
    member = curvatures.Member(
        name=subject.condition, seed=subject.recipe.seed, split=split, workers=subject.workers,
        train_accuracy=None if row is None else row.train_accuracy, weights=checksum(objective.origin),
        test_accuracy=None if row is None else row.test_accuracy, rehearsed=subject.rehearsed,
    )  # fmt: skip
    old = known.get(_key(member), member)
    same = (objective.num_examples, seed)
    hessian_found, sharpness_found = old.hessian, old.sharpness
    if order.hessian and (
        hessian_found is None
        or (hessian_found.examples, hessian_found.seed) != same
        or (order.density and hessian_found.density is None)
    ):
        with _told(order, world, f"{subject.name}, hessian") as tell:
            hessian_found = hessian(objective, density=order.density, seed=seed, world=world, progress=tell)
    if order.sharpness and (sharpness_found is None or (sharpness_found.examples, sharpness_found.seed) != same):
        with _told(order, world, f"{subject.name}, sharpness") as tell:
            sharpness_found = sharpness(objective, seed=seed, world=world, progress=tell)
    return replace(member, hessian=hessian_found, sharpness=sharpness_found)


def _row(subject: Subject) -> Row | None:
    """Give the row of metrics of the examined checkpoint, if there is one."""
    rows = [] if subject.run is None else subject.run.rows("epoch")
    return next((row for row in reversed(rows) if row.step == subject.step), None)


def _about(order: Order) -> dict[str, Any]:
    """Say what ran where; the command is the one that the user typed, not a worker's."""
    about = environment()
    return {**about, "command": order.command or about["command"]}


def _write_landscape(order: Order, task: str, found: list[landscapes.Member]) -> None:
    if not found:
        return
    about, file = _about(order), place(order) / landscapes.FILE
    with suppress(RunError):  # none yet, or a damaged one: written anew
        old = {member.name: member for member in Landscape.load(file).members}
        found = [member.with_old(old[member.name]) if member.name in old else member for member in found]
    Landscape(task=task, members=tuple(found), command=about["command"], environment=about).save(file)


def _write_curvature(order: Order, task: str, found: Sequence[curvatures.Member]) -> None:
    about, file = _about(order), place(order) / curvatures.FILE
    Curvature(task=task, members=tuple(found), command=about["command"], environment=about).save(file)


@contextmanager
def _told(order: Order, world: World, title: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show the stages of one computation, a bar a stage."""
    with ExitStack() as stack:
        bars: dict[str, PointsProgress] = {}

        def tell(what: str, done: int, most: int) -> None:
            if what not in bars:
                stack.close()
                speak = order.progress and world.is_main
                bars[what] = PointsProgress(speak=speak, description=f"{title}, {what}", total=most)
                stack.enter_context(bars[what])
            if bars[what].due:
                bars[what].show(done)

        yield tell
