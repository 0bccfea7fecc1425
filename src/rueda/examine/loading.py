"""From a run folder, or any checkpoint, to the model, its task and its examples.

A run folder says what was trained and how. A checkpoint of another program is a file with a state dictionary: alone, or
under ``model``, ``state_dict`` or ``model_state_dict``; prefixes that wrappers leave in names (``module.``,
``_orig_mod.``) are dropped. What it belongs to is then told by ``--task``. Reading a file never runs code from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from rueda.data import Arrays
from rueda.errors import CheckpointError, ExamineError, RunError, TaskError
from rueda.examine.objective.examples import Inputs, read_loader
from rueda.examine.objective.objective import Objective
from rueda.records import Recipe, Run
from rueda.tasks import Task, load_task
from rueda.train.checkpoint import best_checkpoint, list_checkpoints, load_checkpoint
from rueda.train.loaders import evaluation_loader
from rueda.train.normalisation import convert
from rueda.train.regime import adapted
from rueda.world import World
from rueda.world.seeds import seed_model

STATES = ("model", "state_dict", "model_state_dict")
PREFIXES = ("module.", "_orig_mod.")
READ_BATCH = 1024


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A trained model and all that belongs to it."""

    name: str
    task: Task
    recipe: Recipe
    model: nn.Module
    step: int | None
    """updates made, if the file says so"""
    run: Run | None
    """its run folder, if it has one"""
    workers: int | None = None
    """with which it was trained, if the file says so"""
    rehearsed: bool | None = None
    """those workers were virtual, in one process, if the run says so"""

    @property
    def condition(self) -> str:
        """The name without the seed: what several trainings of one kind are shown as."""
        return self.name.replace(f"-seed{self.recipe.seed}", "", 1)

    def objectives(self, splits: Sequence[str] = ("train", "test"), *, num_examples: int | None = 1024,
                   device: torch.device | str | None = None) -> dict[str, Objective]:  # fmt: skip
        """Read the examples of each split and give the objectives on this model.

        Args:
            splits: ``train``, ``test``.
            num_examples: of each, spread evenly over the data; None takes all.
            device: where to compute.
        """
        found: dict[str, Objective] = {}
        dtype = next(self.model.parameters()).dtype
        for split in splits:
            inputs, targets = examples(self.task, split, num_examples, dtype)
            if found:
                found[split] = next(iter(found.values())).with_examples(inputs, targets)
            else:
                correct = None if self.task.metric is None else self.task.correct
                found[split] = Objective(
                    self.model, self.task.losses, inputs, targets, correct=correct, device=device
                )  # fmt: skip
        return found


def load_subject(
    path: Path | str, *, task: Task | str | None = None, settings: Sequence[str] = (), checkpoint: str = "last"
) -> Subject:
    """Load what is to be examined.

    Args:
        path: a run folder, a checkpoint of Rueda, or any file with a state dictionary.
        task: what it belongs to; a run of a built-in task knows it.
        settings: ``NAME=VALUE`` of the recipe, for the model of another program's checkpoint.
        checkpoint: of a run folder: ``last``, ``best``, or a number of updates.

    Raises:
        ExamineError: it is nothing of the kind, or its task is not known.
        CheckpointError: it cannot be read, or is of another model.
    """
    path = Path(path)
    run = Run(path) if path.is_dir() else None
    file = path if run is None else _choose(run, checkpoint)
    state = load_checkpoint(file) if run is not None or _is_ours(file) else _load_any(file)
    told = state.get("task") if isinstance(state.get("task"), str) else None
    known = _find_task(task, told, path)
    recipe, workers = known.recipe, None
    if isinstance(state.get("recipe"), str):
        recipe = Recipe.from_toml(state["recipe"])
        workers = recipe.workers
    recipe = recipe.with_settings(settings)
    model = build_model(known, recipe)
    take_state(model, state, file, known.name)
    place = state.get("place")
    step = place.get("step") if isinstance(place, dict) else None
    name = path.resolve().name if run is not None else file.stem
    return Subject(
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
    """Ask a run's own files; a folder without them does not know."""
    try:
        told = None if run is None else run.environment().get("rehearsed")
    except RunError:
        return None
    return told if isinstance(told, bool) else None


def build_model(task: Task, recipe: Recipe) -> nn.Module:
    """Build the model as the training did, from the recipe's seed: its initial weights are the training's."""
    seed_model(recipe.seed)
    model = convert(task.build(recipe), adapted(recipe))
    return model.to(dtype=torch.float64 if recipe.precision == "float64" else torch.float32)


def load_path(subject: Subject) -> tuple[list[int], list[dict[str, Tensor]]]:
    """Give the initial model, built again from the seed, and the kept checkpoints of a run up to the subject's own.

    Returns:
        Updates made at each, and their states, oldest first.

    Raises:
        ExamineError: the subject is no run.
    """
    if subject.run is None:
        raise ExamineError(
            "the training path",
            expected="a run folder with its checkpoints",
            got=subject.name,
            do="name the run, such as runs/NAME",
        )
    found = {0: dict(build_model(subject.task, subject.recipe).state_dict())}
    files = list_checkpoints(subject.run.checkpoints)
    for step in sorted({_step(file) for file in files}):
        if step > 0 and (subject.step is None or step <= subject.step):
            file = _latest([file for file in files if _step(file) == step])
            assert file is not None
            found[step] = load_checkpoint(file)["model"]
    return list(found), list(found.values())


def examples(task: Task, split: str, count: int | None, dtype: torch.dtype) -> tuple[Inputs, Tensor]:
    """Read examples of a task without augmentation, spread evenly over the data: sorted sets begin with one class."""
    if count is not None and count < 1:
        raise ExamineError("examples", expected="1 or more", got=count, do="correct it")
    data = task.load(split)
    total = len(data)  # type: ignore[arg-type]
    if total == 0:
        raise ExamineError(
            f"the {split} data of task {task.name}", expected="at least one example", got=0, do="load some"
        )
    if count is not None and count < total:
        indices = [number * total // count for number in range(count)]
        data = data.subset(indices) if isinstance(data, Arrays) else Subset(data, indices)
    return read_loader(evaluation_loader(data, READ_BATCH, World(), dtype))


def take_state(model: nn.Module, state: dict[str, Any], file: Path, task: str) -> None:
    """Give a model the weights of a file; those of another model are refused in one line."""
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
        raise CheckpointError(
            f"{file} is of another model than task {task} builds: {why}{f' and {num_more} more' if num_more else ''}; "
            "name its task with --task and its model's options with --set model.NAME=VALUE"
        )
    model.load_state_dict(found)


def _weights(state: dict[str, Any], file: Path) -> dict[str, Tensor]:
    inner = next((state[name] for name in STATES if isinstance(state.get(name), dict)), state)
    found = {}
    for name, value in inner.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(
                str(file),
                expected="a state dictionary of tensors",
                got=f"{name}: {type(value).__name__}",
                do="save model.state_dict()",
            )
        for prefix in PREFIXES:
            name = name.removeprefix(prefix)
        found[name] = value
    return found


def _find_task(given: Task | str | None, told: str | None, path: Path) -> Task:
    if isinstance(given, Task):
        return given
    if given is not None:
        return load_task(given)
    if told is None:
        raise ExamineError(
            str(path),
            expected="a task that it belongs to",
            got="none in the file",
            do="name it: --task NAME or --task FILE.py",
        )
    try:
        return load_task(told)
    except TaskError:
        raise ExamineError(
            f"the task of {path}", expected="a built-in one", got=told, do="name its file: --task FILE.py"
        ) from None


def _choose(run: Run, wanted: str) -> Path:
    files = list_checkpoints(run.checkpoints)
    chosen: Path | None
    if wanted == "best":
        chosen = best_checkpoint(run.checkpoints)
    else:
        step = str(_step(files[0])) if wanted == "last" and files else wanted
        chosen = _latest([file for file in files if str(_step(file)) == step])
    if chosen is None:
        steps = ", ".join(str(step) for step in sorted({_step(file) for file in files}))
        raise ExamineError(
            f"{run.folder}, checkpoint",
            expected=f"last, best or one of its steps ({steps or 'it has none'})",
            got=wanted,
            do="choose one, or name a run folder with checkpoints",
        )
    return chosen


def _step(file: Path) -> int:
    return int(file.name.split(".")[0].removeprefix("step-"))


def _latest(files: list[Path]) -> Path | None:
    """Choose among checkpoints of one step: the one at the end of an epoch may have new batch-norm statistics."""
    if len(files) < 2:
        return files[0] if files else None
    return max(files, key=lambda file: load_checkpoint(file)["place"]["epoch"])


def _is_ours(file: Path) -> bool:
    return file.name.startswith(("step-", "best.")) and file.name.count(".") == 2


def _load_any(file: Path) -> dict[str, Any]:
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ExamineError(
            str(file), expected="a run folder or a checkpoint file", got=error.strerror, do="check the path"
        ) from None
    except Exception as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{file} cannot be read as tensors alone ({first_line}); save model.state_dict() and examine that"
        ) from None
    if not isinstance(state, dict):
        raise CheckpointError(
            str(file), expected="a state dictionary", got=type(state).__name__, do="save model.state_dict()"
        )
    return state
