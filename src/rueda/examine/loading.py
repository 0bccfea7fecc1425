"""Load a model with its task and examples from a run folder or from any checkpoint.

A run folder says what was trained and how. A checkpoint of another program is a file with a state dictionary: alone, or
under ``model``, ``state_dict`` or ``model_state_dict``; prefixes that wrappers leave in names (``module.``,
``_orig_mod.``) are dropped. ``--task`` then names the task. Reading a file never executes code from it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from rueda.data import Arrays
from rueda.data.length import indexed
from rueda.errors import CheckpointError, ExamineError, RunError, TaskError, read_failure
from rueda.examine.objective.examples import Inputs, read_loader
from rueda.examine.objective.objective import Objective
from rueda.examine.objective.step_model import StepModel, given_losses
from rueda.files.remote import AnyPath
from rueda.optim.rates import adapted
from rueda.records import Recipe, Run
from rueda.tasks import Task, load_task
from rueda.tasks.half_precision import protect_for
from rueda.train.checkpoint import find_checkpoint, list_checkpoints, load_checkpoint, step_of
from rueda.train.loaders import evaluation_loader
from rueda.train.normalisation import convert
from rueda.train.state import evaluated_weights
from rueda.world import World, instruction_sets
from rueda.world.running import running_identity
from rueda.world.seeds import seed_model

STATES = ("model", "state_dict", "model_state_dict")
PREFIXES = ("module.", "_orig_mod.")
READ_BATCH = 1024


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A trained model with its task, recipe and run."""

    name: str
    task: Task
    recipe: Recipe
    model: nn.Module
    step: int | None
    """the number of updates, if the checkpoint records it"""
    run: Run | None
    """the run folder, if the model was loaded from one"""
    workers: int | None = None
    """the number of workers that trained it, if the checkpoint records it"""
    rehearsed: bool | None = None
    """whether those workers were rehearsed in one process, if the run records it"""

    @property
    def condition(self) -> str:
        """The name without the seed, under which the seeds of one recipe are shown together."""
        return self.name.replace(f"-seed{self.recipe.seed}", "", 1)

    def objectives(self, splits: Sequence[str] = ("train", "test"), *, num_examples: int | None = 1024,
                   device: torch.device | str | None = None) -> dict[str, Objective]:  # fmt: skip
        """Read the examples of each split and return an objective for each.

        Args:
            splits: ``train``, ``test``.
            num_examples: examples of each split, spread evenly over the data; None takes all.
            device: the device that computes; by default the model's.
        """
        found: dict[str, Objective] = {}
        task = self.task.for_recipe(self.recipe)  # what was held out is not training data
        if task.step is not None:
            model = StepModel(task, self.model)
            for split in splits:
                numbers, contents = model.numbers(chosen_data(task, split, num_examples))
                if found:
                    found[split] = next(iter(found.values())).with_examples(numbers, contents)
                else:
                    found[split] = Objective(model, given_losses, numbers, contents, device=device)
            return found
        dtype = next(self.model.parameters()).dtype
        for split in splits:
            inputs, targets = examples(task, split, num_examples, dtype)
            if found:
                found[split] = next(iter(found.values())).with_examples(inputs, targets)
            else:
                correct = None if task.metric is None else task.correct
                found[split] = Objective(
                    self.model, task.losses, inputs, targets, correct=correct, device=device
                )  # fmt: skip
        return found


def load_model(
    path: Path | str, *, task: Task | str | None = None, settings: Sequence[str] = (), checkpoint: str = "last"
) -> TrainedModel:
    """Load a model that is to be examined.

    Args:
        path: a run folder, a checkpoint of Rueda, or any file with a state dictionary.
        task: the model's task; a run remembers its own.
        settings: ``NAME=VALUE`` of the recipe, for the model of another program's checkpoint.
        checkpoint: which one of a run folder: ``last``, ``best``, or a number of updates.

    Raises:
        ExamineError: the path is neither a run nor a checkpoint, or its task is not known.
        CheckpointError: the checkpoint cannot be read, or belongs to another model.
    """
    path = Path(path)
    run = Run(path) if path.is_dir() else None
    file: AnyPath = path if run is None else _choose(run, checkpoint)
    state = load_checkpoint(file) if run is not None or _is_ours(path) else _load_any(path)
    told = state.get("task") if isinstance(state.get("task"), str) else None
    known = _find_task(task, told, path, _home(path) if run is not None or _is_ours(path) else None)
    recipe, workers = known.recipe, None
    if isinstance(state.get("recipe"), str):
        recipe = Recipe.from_toml(state["recipe"])
        workers = recipe.workers
    recipe = recipe.with_settings(settings)
    if not instruction_sets.has_gpu(os.environ):
        protect_for(known, "float32", speak=running_identity().rank == 0)
    model = build_model(known, recipe)
    take_state(model, state, file, known.name)
    place = state.get("place")
    step = place.get("step") if isinstance(place, dict) else None
    name = path.resolve().name if run is not None else Path(file.name).stem
    return TrainedModel(
        name=name,
        task=known,
        recipe=recipe,
        model=model,
        step=step,
        run=run,
        workers=workers,
        rehearsed=_rehearsed(run),
    )


def _rehearsed(run: Run | None) -> bool | None:
    """Return whether a run was rehearsed; None if its folder does not record it."""
    try:
        told = None if run is None else run.environment().get("rehearsed")
    except RunError:
        return None
    return told if isinstance(told, bool) else None


def build_model(task: Task, recipe: Recipe) -> nn.Module:
    """Build the model with the recipe's seed, so that its initial weights are those of the training."""
    seed_model(recipe.seed)
    model = convert(task.build(recipe), adapted(recipe))
    return model.to(dtype=torch.float64 if recipe.precision == "float64" else torch.float32)


def load_path(trained: TrainedModel) -> tuple[list[int], list[dict[str, Tensor]]]:
    """Return the initial model, rebuilt from the seed, and the kept checkpoints of a run up to the model's own.

    Returns:
        The number of updates of each, and their states, oldest first.

    Raises:
        ExamineError: the model was not loaded from a run folder.
    """
    if trained.run is None:
        do = "name the run, such as runs/NAME"
        raise ExamineError("the training path", expected="a run folder with its checkpoints", got=trained.name, do=do)
    found = {0: dict(build_model(trained.task, trained.recipe).state_dict())}
    for file in reversed(list_checkpoints(trained.run.checkpoints)):  # of one step, the newest comes last
        if step_of(file) > 0 and (trained.step is None or step_of(file) <= trained.step):
            found[step_of(file)] = evaluated_weights(load_checkpoint(file))
    return list(found), list(found.values())


def examples(task: Task, split: str, count: int | None, dtype: torch.dtype) -> tuple[Inputs, Tensor]:
    """Read evenly spaced examples without augmentation into memory."""
    data = chosen_data(task, split, count)
    return read_loader(evaluation_loader(data, READ_BATCH, World(), dtype, task.collate))


def chosen_data(task: Task, split: str, count: int | None) -> Any:
    """Load evenly spaced examples; the first ones of a sorted data set would be of one class.

    A stream cannot be read at any place: of it, the first examples are loaded.

    Args:
        task: provides the data.
        split: ``train``, ``validation``, ``test``, or the name of a further test set.
        count: the number of examples; None loads all of them.
    """
    if count is not None and count < 1:
        raise ExamineError("examples", expected="1 or more", got=count, do="correct it")
    data = indexed(task.load(split), count)
    total = len(data)
    if total == 0:
        raise ExamineError(
            f"the {split} data of task {task.name}", expected="at least one example", got=0, do="load some"
        )
    if count is not None and count < total:
        indices = [number * total // count for number in range(count)]
        return data.subset(indices) if isinstance(data, Arrays) else Subset(data, indices)
    return data


def take_state(model: nn.Module, state: dict[str, Any], file: AnyPath, task: str) -> None:
    """Load the weights of a file into a model; weights of another model raise an error of one line."""
    found = _weights(state, file)
    own = model.state_dict()
    missing = [name for name in own if name not in found]
    extra = [name for name in found if name not in own]
    shapes = [name for name in own if name in found and found[name].shape != own[name].shape]
    if missing or extra or shapes:
        if shapes:
            name = shapes[0]
            why = f"{name} has shape {list(found[name].shape)} instead of {list(own[name].shape)}"
        else:
            why = f"{missing[0]} is missing" if missing else f"{extra[0]} is unknown"
        num_more = len(missing) + len(extra) + len(shapes) - 1
        more = f" and {num_more} more" if num_more else ""
        raise CheckpointError(
            f"{file} belongs to another model than the one that task {task} builds: {why}{more}; "
            "name its task with --task and its model's options with --set model.NAME=VALUE"
        )
    model.load_state_dict(found)


def _weights(state: dict[str, Any], file: AnyPath) -> dict[str, Tensor]:
    inner = next((state[name] for name in STATES if isinstance(state.get(name), dict)), state)
    if inner is state.get("model") and "place" in state:  # a checkpoint of a training, which may hold an average
        inner = evaluated_weights(state)
    found = {}
    for name, value in inner.items():
        if not isinstance(value, Tensor):
            expected, do = "a state dictionary of tensors", "save model.state_dict()"
            raise CheckpointError(str(file), expected=expected, got=f"{name}: {type(value).__name__}", do=do)
        for prefix in PREFIXES:
            name = name.removeprefix(prefix)
        found[name] = value
    return found


def _home(path: Path) -> Run | None:
    """Return the run that a folder or a checkpoint belongs to, if its files are there."""
    folder = path if path.is_dir() else path.parent.parent
    return Run(folder) if (folder / "environment.json").is_file() else None


def _find_task(given: Task | str | None, told: str | None, path: Path, home: Run | None) -> Task:
    """Load the task: the one that was given, or else the one that the run or the checkpoint names."""
    if isinstance(given, Task):
        return given
    name = given or (told if home is None else home.task_name())
    if name is None:
        do = "name it: --task NAME or --task FILE.py"
        raise ExamineError(str(path), expected="a task that it belongs to", got="none in the file", do=do)
    try:
        return load_task(name)
    except TaskError:
        if given is not None or name.endswith(".py"):
            raise
        raise ExamineError(
            f"the task of {path}", expected="a built-in one", got=name, do="name its file: --task FILE.py"
        ) from None


def _choose(run: Run, wanted: str) -> AnyPath:
    chosen = find_checkpoint(run.checkpoints, wanted)
    if chosen is None:
        steps = ", ".join(str(step) for step in sorted({step_of(file) for file in list_checkpoints(run.checkpoints)}))
        expected = f"last, best or one of its steps ({steps or 'it has none'})"
        do = "choose one, or name a run folder with checkpoints"
        raise ExamineError(f"{run.folder}, checkpoint", expected=expected, got=wanted, do=do)
    return chosen


def _is_ours(file: Path) -> bool:
    return file.name.startswith(("step-", "best.")) and file.name.count(".") == 2


def _load_any(file: Path) -> dict[str, Any]:
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ExamineError(
            f"{file}: expected a run folder or a checkpoint file, got: {read_failure(error)}; check the path"
        ) from None
    except Exception as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{file} cannot be loaded as tensors alone ({first_line}); save model.state_dict() and examine that file"
        ) from None
    if not isinstance(state, dict):
        raise CheckpointError(
            str(file), expected="a state dictionary", got=type(state).__name__, do="save model.state_dict()"
        )
    return state
