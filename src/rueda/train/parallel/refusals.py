"""What a form of parallel training cannot do, in one table; each is refused in one line before anything runs."""

from __future__ import annotations

from rueda.errors import RecipeError
from rueda.records import Recipe
from rueda.records.recipe.parallel_form import Mesh
from rueda.tasks import Task
from rueda.world import elastic

_DIVIDED = ("sharded", "pipeline", "tensor")
_ONLY_DATA = "needs the whole model on each worker"
REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "a rehearsal": (
        ("pipeline", "tensor"),
        "computes the update that data-parallel workers make together, and workers that share a batch make that of one "
        "worker",
    ),
    "adascale": (_DIVIDED, "needs the gradient of the whole model of each worker"),
    "noise_scale_every": (_DIVIDED, "needs the gradient of the whole model of each worker"),
    "additive_noise": (_DIVIDED, "draws numbers for the whole model on each worker"),
    "compile": (_DIVIDED, "is not supported where the model is divided"),
    "precision = fp16": (_DIVIDED, "scales the loss by what each worker finds in a gradient of the whole model"),
    "on_divergence = skip": (_DIVIDED, "leaves updates out by what each worker finds in a gradient of the whole model"),
    "a task with phases": (_DIVIDED, "trains parts of the whole model in turn"),
    "an elastic job": (_DIVIDED, "goes on with the whole model of any worker that is left"),
    "ema_decay": (("pipeline",), _ONLY_DATA),
    "recalibrate = always": (("pipeline",), _ONLY_DATA),
}
"""feature -> the forms that cannot have it, and why it is refused"""


def check_form(task: Task, recipe: Recipe, mesh: Mesh, *, rehearse: bool = False) -> None:
    """Refuse what the form of a training cannot do.

    Args:
        task: the task.
        recipe: the recipe, which names the form.
        mesh: the workers of each form.
        rehearse: whether one process computes the updates of all workers.

    Raises:
        RecipeError: the recipe asks for something that a form of the mesh cannot do; the message names both.
    """
    asked = {
        "adascale": recipe.adascale,
        "noise_scale_every": recipe.noise_scale_every is not None,
        "additive_noise": recipe.additive_noise > 0,
        "compile": recipe.compile,
        "precision = fp16": recipe.precision == "fp16",
        "on_divergence = skip": recipe.on_divergence == "skip",
        "a task with phases": bool(task.phases),
        "an elastic job": elastic.is_elastic(),
        "ema_decay": recipe.ema_decay is not None,
        "recalibrate = always": recipe.recalibrate == "always",
        "a rehearsal": rehearse,
    }
    for name, (kinds, why) in REFUSED.items():
        kind = next((one for one in kinds if one in mesh.kinds), None)
        if asked[name] and kind is not None:
            do = "leave it out, or use parallel = data"
            raise RecipeError(f"{name} {why}, so it does not go with parallel = {recipe.parallel!r}; {do}")
