"""The same model and batch in each parallel form: bytes, memory, idle time and throughput, measured and predicted.

Phases: **one worker** trains some steps alone, and its parameters are kept; then the workers train the same steps in
each **form**, and are compared with it; what :mod:`rueda.plan.form_choice` **predicts** for this machine stands beside
what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rueda import jobs
from rueda.errors import ProfileError
from rueda.files.start_directory import located
from rueda.jobs import Job
from rueda.plan.cluster import this_machine
from rueda.plan.form_choice import predict_form
from rueda.records.environment import environment
from rueda.records.parallelism import MeasuredForm, Parallelism
from rueda.records.recipe.parallel_form import Mesh
from rueda.study.form_jobs import FormAnswer, FormRequest, OneWorkerAnswer
from rueda.tasks.half_precision import protect_before_loading
from rueda.terminal.phases import PhasesProgress

_NOT_YET = "a recipe of this version trains with data parallelism only; `rueda plan --parallelism` predicts this form"


def study_parallelism(
    task: str,
    *,
    workers: int = 2,
    num_steps: int = 20,
    settings: Sequence[str] = (),
    folder: Path | str | None = None,
    progress: bool = True,
) -> Parallelism:
    """Train a task in each parallel form on some workers of this machine, as ``rueda parallelism`` does.

    Args:
        task: a built-in name or a task file; its recipe's batch is the global batch, rounded to a multiple of the
            workers.
        workers: the number of workers, 2 or more.
        num_steps: steps after which the parameters are compared with those of one worker.
        settings: fields of the recipe, as ``name=value``.
        folder: where ``parallelism.json`` is written; None writes nothing.
        progress: show a bar, or a line.

    Raises:
        ProfileError: fewer than 2 workers or no step.
    """
    for name, value, least in (("workers", workers, 2), ("steps", num_steps, 1)):
        if value < least:
            raise ProfileError(name, expected=f"{least} or more", got=value, do="correct it")
    start = Path.cwd()
    protect_before_loading(task)
    with TemporaryDirectory(prefix="rueda-forms-") as scratch, PhasesProgress(speak=progress, phases=2) as bar:
        request = FormRequest(
            task=task, settings=tuple(settings), workers=workers, num_steps=num_steps, folder=Path(scratch)
        )
        bar.phase("one worker")
        where = "rueda.study.form_jobs:one_worker"
        alone = jobs.run(Job(function=where, request=request, answer=OneWorkerAnswer))
        bar.phase(f"data, {workers} workers")
        where = "rueda.study.form_jobs:data_form"
        found = jobs.run(Job(function=where, request=request, answer=FormAnswer), workers=workers)
    profile = replace(alone.profile, communication=(found.communication,))
    if not profile.layers:
        expected, do = "a model of one phase whose shapes do not depend on values", "use another task"
        raise ProfileError(f"the layers of {task}", expected=expected, got="none", do=do)
    predicted = predict_form(profile, this_machine(profile), Mesh(data=workers), batch=alone.global_batch)
    names = tuple(layer.name for layer in profile.layers)
    data = MeasuredForm(
        form="data", predicted=predicted, traffic=found.traffic, memory=found.memory, spread=found.spread,
        images_per_second=found.images_per_second, difference=found.difference, holds=(names,) * workers,
    )  # fmt: skip
    result = Parallelism(
        task=profile.task, workers=workers, global_batch=alone.global_batch, num_steps=num_steps, unit=profile.unit,
        precision=alone.precision, layers=names, forms=(data,), environment=environment(),
        refused=tuple((form, _NOT_YET) for form in ("sharded", "pipeline", "tensor")),
    )  # fmt: skip
    if folder is not None:
        result.save(located(Path(folder), start) / Parallelism.FILE)
    return result
