"""Compare the parallel forms of a model on a cluster, and say which and why: does it fit, which links, which layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rueda.errors import ProfileError
from rueda.plan.cluster import Cluster
from rueda.plan.form_times import step_times
from rueda.plan.parallel_forms import Schedule, all_meshes, cut_into_stages, traffic_of, worker_memory
from rueda.records.model_layers import LayerWork
from rueda.records.parallelism import FormPrediction, WorkerMemory
from rueda.records.profile import Profile
from rueda.records.recipe.parallel_form import Mesh
from rueda.terminal.numbers import amount, milliseconds

HEADROOM = 0.9
"""fraction of a device's memory that a training may fill"""
MARGIN = 0.15
"""by how much the step of a simpler form may be longer than the shortest one before it is given up: a predicted step is
wrong by up to 8 % (``benchmarks/plan.py``), the ratio of two of them by 1.4 times as much if their errors are
independent"""
_SIMPLE = ("data", "sharded", "tensor", "pipeline")
"""the forms from the simplest on: of several within :data:`MARGIN` the first one is chosen"""


def predict_form(
    profile: Profile,
    cluster: Cluster,
    mesh: Mesh,
    *,
    batch: int,
    schedule: Schedule | None = None,
    stages: Sequence[Sequence[LayerWork]] | None = None,
) -> FormPrediction:
    """Predict the step of a profiled model in one form.

    Args:
        profile: the measured task; ``rueda measure`` has counted its layers.
        cluster: where it will run.
        mesh: the form.
        batch: the global batch, which is the same in each form.
        schedule: of a pipeline; by default 1F1B with four micro-batches for each stage, or as many as there are
            examples.
        stages: the layers of each stage of a pipeline, where they are known; by default the cut with equal flops.

    Raises:
        ProfileError: the profile has no layers, or fewer than stages; nothing can be split; or a link is missing.
    """
    layers = profile.layers
    if not layers:
        expected, do = "the layers of the model", "measure it again with `rueda measure`"
        raise ProfileError("profile.layers", expected=expected, got="none", do=do)
    if mesh.tensor > 1 and not any(layer.split_parameters for layer in layers):
        raise ProfileError("tensor", expected="a layer that can be split", got="none", do="use another form")
    examples = batch / mesh.replicas
    if examples < 1:
        do = "use fewer workers or a larger batch"
        raise ProfileError("batch", expected=f"{mesh.replicas} or more, one a replica", got=batch, do=do)
    schedule = schedule or default_schedule(mesh, batch)
    stages = stages or cut_into_stages(layers, mesh.pipeline)
    micro = examples / (schedule.micro_batches if mesh.pipeline > 1 else 1)
    memory = max(
        (
            worker_memory(
                stage, mesh, examples=micro, state_per_parameter=state_per_parameter(profile),
                in_flight=schedule.in_flight(mesh.pipeline, number) if mesh.pipeline > 1 else 1,
            )
            for number, stage in enumerate(stages)
        ),
        key=lambda one: one.total,
    )  # fmt: skip
    seconds, compute, communication = step_times(profile, cluster, stages, mesh, schedule, batch)
    return FormPrediction(
        form=mesh.form, workers=mesh.workers, memory=memory, traffic=traffic_of(stages, mesh, examples=examples),
        compute_seconds=compute, bubble=schedule.bubble(mesh.pipeline) if mesh.pipeline > 1 else 0.0,
        communication_seconds=communication, step_seconds=seconds, images_per_second=batch / seconds,
        fits=fits(memory, profile, cluster, mesh.workers),
    )  # fmt: skip


def default_schedule(mesh: Mesh, batch: int) -> Schedule:
    """Return 1F1B with four micro-batches for each stage, if the batch of a replica has as many examples.

    >>> default_schedule(Mesh(pipeline=2), 64).micro_batches, default_schedule(Mesh(pipeline=2), 3).micro_batches
    (8, 3)
    """
    return Schedule(max(1, min(4 * mesh.pipeline, batch // mesh.replicas)))


def state_per_parameter(profile: Profile) -> float:
    """Return the bytes of the optimizer's state for each byte of a parameter; without counted work that of momentum.

    It is rounded to halves: scalars, such as Adam's count of steps, do not belong to the state of a form.
    """
    if profile.work is None:
        return 1.0
    return max(0.0, round(2 * (profile.work.update_bytes / profile.gradient_bytes - 2)) / 2)


def device_memory(profile: Profile, cluster: Cluster, workers: int) -> float | None:
    """Return the memory that each worker has; on a CPU the workers of a machine share it. None: not known."""
    if cluster.memory is not None:
        return cluster.memory
    own = cluster.profile or (profile if cluster.is_profiled else None)
    if own is None or own.memory_bytes is None:
        return None
    return own.memory_bytes / (-(-workers // cluster.nodes(workers)) if own.device.startswith("cpu") else 1)


def fits(memory: WorkerMemory, profile: Profile, cluster: Cluster, workers: int) -> bool | None:
    """Return whether a worker's memory suffices; None if it is not known."""
    available = device_memory(profile, cluster, workers)
    return None if available is None else memory.total <= HEADROOM * available


def meshes(workers: int, layers: Sequence[LayerWork]) -> list[Mesh]:
    """Return the forms of a number of workers that a model of these layers can have.

    >>> layer = LayerWork(name="0", shapes=((8, 4),), output_bytes=0, saved_bytes=0, flops=1)
    >>> [mesh.form for mesh in meshes(4, [layer] * 2)]
    ['data', 'sharded', 'data 2 x sharded 2', 'data 2 x pipeline 2']
    """
    can_split = any(layer.split_parameters for layer in layers)
    return [
        mesh for mesh in all_meshes(workers) if mesh.pipeline <= len(layers) and (mesh.tensor == 1 or can_split)
    ]  # fmt: skip


def compare_forms(
    profile: Profile, cluster: Cluster, *, workers: int, batch: int
) -> tuple[list[FormPrediction], list[tuple[str, str]]]:  # fmt: skip
    """Predict each form of a number of workers; return the predictions, and the forms that cannot be with the reason.

    Raises:
        ProfileError: the profile has no layers.
    """
    found, refused = [], []
    if not profile.layers:
        predict_form(profile, cluster, Mesh(), batch=batch)  # says what is missing
    for mesh in meshes(workers, profile.layers):
        try:
            found.append(predict_form(profile, cluster, mesh, batch=batch))
        except ProfileError as error:
            refused.append((mesh.form, str(error)))
    if workers > 1 and not any(layer.split_parameters for layer in profile.layers):
        refused.append(("tensor", "no layer of this model has a tensor-parallel plan"))
    return found, refused


def best_form(forms: Iterable[FormPrediction]) -> FormPrediction | None:
    """Return the simplest of the forms that fit and are as fast as any within the prediction's error; None: none fits.

    It is data parallelism if it fits, unless another form is faster by more than :data:`MARGIN`.
    """
    usable = [form for form in forms if form.fits is not False]
    if not usable:
        return None
    fastest = min(form.step_seconds for form in usable)
    close = [form for form in usable if form.step_seconds <= (1 + MARGIN) * fastest]
    return min(close, key=lambda form: (" x " in form.form, _SIMPLE.index(form.form.split()[0])))


def reason(forms: Sequence[FormPrediction], profile: Profile, cluster: Cluster) -> str:
    """Say in a line which form and why: what fits, what the links take, which layers are large."""
    chosen = best_form(forms)
    if chosen is None:
        least = min(forms, key=lambda form: form.memory.total)
        available = device_memory(profile, cluster, least.workers)
        limit = "" if available is None else f" of {amount(available)}"
        return (
            f"no form fits: {least.form} needs the least, {amount(least.memory.total)}{limit} a worker; use more "
            "workers, a smaller batch or activation checkpointing"
        )
    parts = [f"{chosen.form}: {milliseconds(chosen.step_seconds)} a step"]
    data = next((form for form in forms if form.form == "data"), None)
    if data is not None and data is not chosen:
        if data.fits is False:
            parts.append(f"data does not fit ({amount(data.memory.total)} a worker)")
        else:
            more = 100 * (data.step_seconds / chosen.step_seconds - 1)
            parts.append(f"data takes {milliseconds(data.step_seconds)}, {more:.0f} % more")
    parts += _simpler_than(chosen, forms)
    parts.append(
        f"a worker holds {amount(chosen.memory.total)} and sends {amount(chosen.sent)} a step, "
        f"{milliseconds(chosen.communication_seconds)} on the links"
    )
    if chosen.fits is None:
        parts.append("whether it fits is not known, since the memory of the device is not")
    others = [form for form in forms if form is not chosen and form.fits is not False and form is not data]
    slow = max(others, key=lambda form: form.step_seconds, default=None)
    if slow is not None and slow.step_seconds > 1.2 * chosen.step_seconds:
        why = f"waits for {100 * slow.bubble:.0f} % of it" if slow.bubble > 0.1 else f"sends {amount(slow.sent)}"
        parts.append(f"{slow.form} takes {milliseconds(slow.step_seconds)}: it {why}")
    largest = max(profile.layers, key=lambda layer: layer.parameters)
    share = largest.parameters / max(1, sum(layer.parameters for layer in profile.layers))
    if share > 0.5:
        parts.append(f"layer {largest.name} has {100 * share:.0f} % of the parameters, so no cut balances the memory")
    return "; ".join(parts)


def _simpler_than(chosen: FormPrediction, forms: Iterable[FormPrediction]) -> list[str]:
    """Say that a predicted step is shorter, if one is, by less than the error of the prediction."""
    fastest = min((form for form in forms if form.fits is not False), key=lambda form: form.step_seconds)
    if fastest.step_seconds >= chosen.step_seconds:
        return []
    return [
        f"{fastest.form} takes {milliseconds(fastest.step_seconds)}, but predictions less than {100 * MARGIN:.0f} % "
        "apart may be wrong by as much, so the simpler form is taken"
    ]
