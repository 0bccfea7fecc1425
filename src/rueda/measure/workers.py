"""The part of a measurement that needs several workers, and how it starts them.

Under a launcher (``rueda run -np 4 rueda measure TASK``, torchrun, srun) these workers are measured. Otherwise
``python -m rueda.measure.workers TASK FOLDER`` runs on as many processes of this machine as are wanted: they read
``request.json`` in the folder, and rank 0 leaves ``answer.json``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rueda.errors import LaunchError, RuedaError
from rueda.records import Recipe
from rueda.records.json_record import read_record
from rueda.records.profile import Communication, Together
from rueda.tasks import Task
from rueda.world import World, open_world


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the workers shall measure."""

    recipe: str
    """as TOML"""
    batches: tuple[int, ...]
    sizes: tuple[int, ...]
    """bytes of the all-reduces"""
    step_seconds: float
    communication_seconds: float


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What several workers found."""

    communication: Communication
    together: Together


def measure_here(task: Task, request: Request, world: World) -> Answer:
    """Measure with the workers that are running; all must call it."""
    from rueda.measure.communication import measure_communication
    from rueda.measure.together import measure_together

    recipe = Recipe.from_toml(request.recipe)
    link = measure_communication(world, sizes=request.sizes, seconds=request.communication_seconds)
    together = measure_together(task, recipe, world, request.batches, link, seconds=request.step_seconds)
    return Answer(communication=link, together=together)


def measure_started(task: str, request: Request, workers: int) -> Answer:
    """Start that many workers on this machine, let them measure, and give what they found."""
    from rueda.world.launch import Host, LaunchPlan, Show, launch

    with TemporaryDirectory(prefix="rueda-measure-") as scratch:
        folder = Path(scratch)
        (folder / "request.json").write_text(json.dumps(asdict(request)), encoding="utf-8")
        plan = LaunchPlan(
            program=(sys.executable, "-m", "rueda.measure.workers", task, scratch),
            hosts=(Host(name="localhost", slots=workers),),
        )
        status = launch(plan, show=Show(quiet_ranks=True))
        answer = folder / "answer.json"
        if status in (130, 143):
            raise KeyboardInterrupt
        if status != 0 or not answer.exists():
            raise LaunchError(
                f"the {workers} workers that were to be measured ended with status {status}; "
                "mend what they said above, or measure one worker with --workers 1"
            )
        return read_record(Answer, json.loads(answer.read_text(encoding="utf-8")), "answer")


def main(words: Sequence[str]) -> None:
    """Be one of the workers."""
    from rueda.tasks.loading import load_task_and_data

    task, folder = words[0], Path(words[1])
    request = read_record(Request, json.loads((folder / "request.json").read_text(encoding="utf-8")), "request")
    world = open_world()
    answer = measure_here(load_task_and_data(task), request, world)
    if world.is_main:
        (folder / "answer.json").write_text(json.dumps(asdict(answer)), encoding="utf-8")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except RuedaError as error:
        print(f"rueda: {error}", file=sys.stderr)
        sys.exit(2)
