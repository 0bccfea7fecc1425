"""The same model and batch in each parallel form: bytes, memory, idle time and throughput, measured and predicted.

Phases: **one worker** trains some steps alone, and its parameters are kept; then the workers train the same steps in
each **form** that a recipe can have, and are compared with it; what :mod:`rueda.plan.form_choice` **predicts** for this
machine stands beside what was measured. A form that this task cannot have is named with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from rueda import jobs
from rueda.errors import ProfileError, RecipeError, TaskError
from rueda.files.start_directory import located
from rueda.jobs import Job
from rueda.plan.cluster import Cluster, this_machine
from rueda.plan.form_choice import predict_form
from rueda.plan.parallel_forms import Schedule, all_meshes
from rueda.records.environment import environment
from rueda.records.model_layers import LayerWork
from rueda.records.parallelism import MeasuredForm, Parallelism
from rueda.records.profile import Profile
from rueda.records.recipe.parallel_form import Mesh
from rueda.records.recipe.values import parse_setting
from rueda.study.form_jobs import FormAnswer, FormRequest, OneWorkerAnswer
from rueda.tasks.half_precision import protect_before_loading
from rueda.terminal.phases import PhasesProgress

_JOBS = "rueda.study.form_jobs"


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
        workers: the number of workers, 2 or more; with 4 or more the forms are also combined.
        num_steps: steps after which the parameters are compared with those of one worker.
        settings: fields of the recipe, as ``name=value``.
        folder: where ``parallelism.json`` is written; None writes nothing.
        progress: show a bar, or a line.

    Raises:
        ProfileError: fewer than 2 workers or no step, or a setting names a form.
    """
    for name, value, least in (("workers", workers, 2), ("steps", num_steps, 1)):
        if value < least:
            raise ProfileError(name, expected=f"{least} or more", got=value, do="correct it")
    if any(parse_setting(setting)[0] == "parallel" for setting in settings):
        raise ProfileError("parallel: every form is trained and compared; leave it out of the settings")
    start, meshes = Path.cwd(), all_meshes(workers)
    protect_before_loading(task)
    found: dict[Mesh, FormAnswer] = {}
    refused: list[tuple[str, str]] = []
    with TemporaryDirectory(prefix="rueda-forms-") as scratch:
        request = FormRequest(
            task=task, settings=tuple(settings), workers=workers, num_steps=num_steps, folder=Path(scratch)
        )
        with PhasesProgress(speak=progress, phases=1 + len(meshes)) as bar:
            bar.phase("one worker")
            alone = jobs.run(Job(function=f"{_JOBS}:one_worker", request=request, answer=OneWorkerAnswer))
            if not alone.profile.layers:
                expected, do = "a model of one phase whose shapes do not depend on values", "use another task"
                raise ProfileError(f"the layers of {task}", expected=expected, got="none", do=do)
            for mesh in meshes:
                bar.phase(f"{mesh.form}, {workers} workers")
                job = Job(function=f"{_JOBS}:one_form", request=replace(request, mesh=mesh), answer=FormAnswer)
                try:
                    found[mesh] = jobs.run(job, workers=workers)
                except (RecipeError, TaskError) as error:
                    refused.append((mesh.form, str(error)))
    data = found.get(Mesh(data=workers))
    measured = () if data is None or data.communication is None else (data.communication,)
    profile = replace(alone.profile, communication=measured)
    cluster = this_machine(profile)
    result = Parallelism(
        task=profile.task, workers=workers, global_batch=alone.global_batch, num_steps=num_steps, unit=profile.unit,
        precision=alone.precision, layers=names_of(profile.layers), environment=environment(),
        micro_batches=max((answer.micro_batches for answer in found.values()), default=1),
        forms=tuple(_form(mesh, answer, profile, cluster, alone.global_batch) for mesh, answer in found.items()),
        refused=tuple(refused),
    )  # fmt: skip
    if folder is not None:
        result.save(located(Path(folder), start) / Parallelism.FILE)
    return result


def _form(mesh: Mesh, answer: FormAnswer, profile: Profile, cluster: Cluster, batch: int) -> MeasuredForm:
    """Return what was measured of a form beside what is predicted for it, with the cut that a pipeline has chosen."""
    stages = stages_of(profile.layers, answer.stage_layers)
    predicted = predict_form(
        profile, cluster, mesh, batch=batch, stages=stages or None,
        schedule=Schedule(answer.micro_batches, is_1f1b=answer.is_1f1b) if stages else None,
    )  # fmt: skip
    return MeasuredForm(
        form=mesh.form, predicted=predicted, traffic=answer.traffic, memory=answer.memory, spread=answer.spread,
        images_per_second=answer.images_per_second, difference=answer.difference, peak_bytes=answer.peak_bytes,
        idle=answer.idle, schedule_idle=answer.schedule_idle, holds=_holds(mesh, profile.layers, stages),
        whole=names_of([layer for layer in profile.layers if mesh.tensor > 1 and not layer.split_parameters]),
    )  # fmt: skip


def stages_of(layers: Sequence[LayerWork], counts: Sequence[int]) -> list[Sequence[LayerWork]]:
    """Return the layers of each stage of a pipeline; none without one."""
    return [layers[start:end] for start, end in pairwise(accumulate(counts, initial=0))]


def _holds(
    mesh: Mesh, layers: Sequence[LayerWork], stages: Sequence[Sequence[LayerWork]]
) -> tuple[tuple[str, ...], ...]:
    """Return the layers that each worker holds, or parts of."""
    if not stages:
        return (names_of(layers),) * mesh.workers
    places = [rank // mesh.tensor % mesh.pipeline for rank in range(mesh.workers)]
    return tuple(names_of([layer for stage in stages[place :: mesh.pipeline] for layer in stage]) for place in places)


def names_of(layers: Sequence[LayerWork]) -> tuple[str, ...]:
    """Return the names of the layers that have parameters, their own or shared ones."""
    return tuple(layer.name for layer in layers if layer.parameters or layer.tied_parameters)
