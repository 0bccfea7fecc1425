"""The evaluation of the saved epochs, in a process of its own: on the grader's examples, with the grader's metric.

A saved epoch counts if it holds the weights that an observed optimizer step left, and if all training examples but a
tenth were read since the epoch before. Its file is loaded as plain tensors (``weights_only``), in a process that
has limits and, with Landlock, writes nothing but temporary files.
"""

from __future__ import annotations

import base64
import re
import tempfile
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rueda import jobs
from rueda.assess.confinement import Limits, confine
from rueda.assess.settings import TaskData
from rueda.records.assessment import SavedEpoch
from rueda.world.cores import usable_cores

_EPOCH = re.compile(r"epoch-([1-9]\d{0,3})\.pt")
_MOST_EPOCHS = 200
_WHOLE = 0.9  # of the training examples are an epoch


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """What is evaluated.

    Args:
        folder: the grader's folder of the run.
        data: the data of the task.
        workers: number of workers.
        seed: of the examples that only the grader has; chosen after the run.
    """

    folder: Path
    data: TaskData
    workers: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where the examples of the training come from, as fractions of all that were seen.

    Args:
        examples: how many were read in training, on all workers.
        train: those that are the task's training examples, exactly or changed by an augmentation.
        validation: those that are its validation examples.
        unknown: those that are neither.
        shared: the part of a worker's examples that another worker has read in the same epoch, too.
    """

    examples: int = 0
    train: float = 0.0
    validation: float = 0.0
    unknown: float = 0.0
    shared: float = 0.0


@dataclass(frozen=True, kw_only=True)
class EvaluationAnswer:
    """What was found.

    Args:
        epochs: each saved epoch.
        others: names of other files, if there is no epoch.
        initial: the accuracy of the weights before the first step.
        strange: what shows that these were not drawn as the model draws them; empty if nothing does.
        num_changes: changes of weights outside of an optimizer's step.
        provenance: where the examples come from.
        num_train: training examples of the task.
        num_validation: validation examples that the script has, too.
        num_held_out: examples that only the grader has.
        steps: optimizer steps of each worker.
        preparation: seconds from the script's start to its first training step.
        preparation_computing: processor seconds of a worker, at most, in that time.
        computing: processor seconds of each worker per second of training, at most 1.
    """

    epochs: tuple[SavedEpoch, ...] = ()
    others: tuple[str, ...] = ()
    initial: float = 0.0
    strange: str = ""
    num_changes: int = 0
    provenance: Provenance = field(default_factory=Provenance)
    num_train: int = 0
    num_validation: int = 0
    num_held_out: int = 0
    steps: tuple[int, ...] = ()
    preparation: float = 0.0
    preparation_computing: float = 0.0
    computing: float = 0.0


def evaluate_apart(request: EvaluationRequest) -> EvaluationAnswer:
    """Evaluate a run in another process."""
    return jobs.run(jobs.Job(function=f"{__name__}:evaluate_here", request=request, answer=EvaluationAnswer), show=True)


def evaluate_here(request: EvaluationRequest) -> EvaluationAnswer:
    """Evaluate a run in this process, which is confined before it reads a file of the script."""
    return evaluate(request, confined=True)


def evaluate(request: EvaluationRequest, *, confined: bool = False) -> EvaluationAnswer:
    """Evaluate a run.

    Args:
        request: what is evaluated.
        confined: whether this process gives up other files for good, once it has its own examples.
    """
    import torch

    from rueda.assess.examples import given, held_out
    from rueda.assess.origin import provenance
    from rueda.check.audit.judge.journals import read_journals

    train, validation = given(request.data)
    own = held_out(request.data, request.seed)
    if confined:
        torch.set_num_threads(usable_cores())
        limits = Limits(processor_seconds=3600)
        confine(user=None, readable=[request.folder], writable=[Path(tempfile.gettempdir())], limits=limits)
    journals = read_journals(request.folder / "journal", request.workers)
    timeline = Timeline(journals.notes)
    grader = _Grader(own, validation)
    epochs: list[SavedEpoch] = []
    reached = 0
    for number, file in _files(request.folder / "work"):
        saved, reached = _epoch(number, file, grader, timeline, reached, len(train))
        epochs.append(saved)
    return EvaluationAnswer(
        epochs=tuple(epochs), others=() if epochs else _others(request.folder / "work"),
        initial=max(map(grader.initial, timeline.initial), default=0.0),
        strange=next(filter(None, map(strange, timeline.initial)), ""),
        num_changes=len(journals.flat("changed")), num_train=len(train),
        num_validation=len(validation), num_held_out=len(own),
        provenance=provenance(journals.notes, train, validation),
        steps=tuple(len(one) for one in timeline.trained), preparation=timeline.preparation,
        preparation_computing=timeline.preparation_computing, computing=timeline.computing(),
    )  # fmt: skip


class Timeline:
    """The order of what the workers have noted, by the clock of this machine."""

    def __init__(self, notes: list[list[dict[str, Any]]]) -> None:
        self.trained = [[one for one in each if one["kind"] == "trained"] for each in notes]
        self.initial = [[one["weights"] for one in each if one["kind"] == "initial"] for each in notes]
        starts = [one["at"] for each in notes for one in each if one["kind"] == "start"]
        firsts = [one["at"] for each in notes for one in each if one["kind"] == "forward"]
        self.begin = min([*firsts, *(one["at"] for each in self.trained for one in each[:1])], default=0.0)
        self.preparation = max(0.0, self.begin - min(starts)) if starts and firsts else 0.0
        self.preparation_computing = max(
            (_first(each, "forward") - _first(each, "start") for each in notes if each), default=0.0
        )
        self._weights = [{frozenset(one["weights"]): one for one in each} for each in self.trained]
        self._processor = [
            (first[0]["processor"], each[-1]["processor"], each[-1]["at"])
            for each in notes if (first := [one for one in each if one["kind"] == "forward"])
        ]  # fmt: skip

    def step_of(self, weights: frozenset[str]) -> int:
        """Return the step after which a worker had these weights; 0 if none had."""
        return int(self._noted(weights)["step"])

    def time_of(self, weights: frozenset[str]) -> float:
        """Return when a worker first had these weights; 0 if none had."""
        return float(self._noted(weights)["at"])

    def _noted(self, weights: frozenset[str]) -> dict[str, Any]:
        for known in self._weights:
            if weights in known:
                return known[weights]
            found = next((one for each, one in known.items() if weights <= each), None)
            if found is not None:
                return found
        return {"step": 0, "at": 0.0}

    def examples(self, first: int, last: int) -> int:
        """Return how many different examples all workers have read in the steps after ``first``, up to ``last``."""
        found: set[int] = set()
        for one in (one for each in self.trained for one in each if first < one["step"] <= last):
            found.update(array("I", base64.b64decode(one["digests"]))[: one["rows"]])
        return len(found)

    def computing(self) -> float:
        """Return the mean part of the time since the first step in which a worker has used a processor."""
        parts = [min(1.0, (end - begin) / (at - self.begin)) for begin, end, at in self._processor if at > self.begin]
        return sum(parts) / len(parts) if parts else 0.0


def _first(notes: list[dict[str, Any]], kind: str) -> float:
    """Return the processor time of a worker at its first note of a kind."""
    return next((float(one["processor"]) for one in notes if one["kind"] == kind), 0.0)


class _Grader:
    """The task's model, which is the grader's own, and the examples on which it is evaluated."""

    def __init__(self, own: Any, validation: Any) -> None:
        from rueda.tasks.models import small_cnn

        _, channels, _, width = own.inputs.shape
        self.model = small_cnn(in_channels=channels, image_size=width).eval()
        self._sets = [(each.floats(each.inputs), each.targets) for each in (own, validation)]
        self.names = [name for name, _ in self.model.named_parameters()]

    def accuracies(self, state: dict[str, Any]) -> list[float]:
        """Return the accuracy of some weights on the grader's own and on the validation examples."""
        import torch

        self.model.load_state_dict(state)
        found = []
        with torch.no_grad():
            for inputs, targets in self._sets:
                right = sum(
                    int((self.model(part).argmax(1) == labels).sum())
                    for part, labels in zip(inputs.split(500), targets.split(500), strict=True)
                )
                found.append(right / len(targets))
        return found

    def initial(self, weights: list[dict[str, Any]]) -> float:
        """Return the accuracy of the weights before the first step; 0 if they are not the model's."""
        left = [_decoded(one) for one in weights]
        state = {}
        for name, parameter in self.model.named_parameters():
            at = next((i for i, one in enumerate(left) if one.shape == parameter.shape), None)
            if at is None:
                return 0.0
            state[name] = left.pop(at)
        return self.accuracies(state)[0]


def strange(weights: list[dict[str, Any]]) -> str:
    """Return what shows that weights are not random ones; torch draws them evenly from [-b, b], b^2 = 1 / fan-in.

    Trained weights leave these bounds, or do not fill them evenly: their mean square is not b^2 / 3.
    """
    for one in weights:
        values, shape = _decoded(one), one["shape"]
        if len(shape) < 2:
            continue  # biases are few
        bound = (values.numel() / shape[0]) ** -0.5
        if float(values.abs().max()) > 1.001 * bound:
            return f"a weight of {tuple(shape)} is beyond the bounds of random ones"
        if not 0.75 < float(values.square().mean()) / (bound * bound / 3) < 1.25:
            return f"the weights of {tuple(shape)} do not vary as random ones do"
    return ""


def _decoded(one: dict[str, Any]) -> Any:
    import numpy as np
    import torch

    values = np.frombuffer(base64.b64decode(one["values"]), dtype=np.float32)
    return torch.from_numpy(values.copy()).reshape(one["shape"])


def _files(work: Path) -> list[tuple[int, Path]]:
    found = {int(match[1]): one for one in work.iterdir() if (match := _EPOCH.fullmatch(one.name))}
    return sorted(found.items())[:_MOST_EPOCHS]


def _others(work: Path) -> tuple[str, ...]:
    names = sorted(ascii(one.name)[1:-1][:40] for one in work.iterdir() if not one.name.startswith("."))
    return tuple(names[:3])


def _epoch(
    number: int, file: Path, grader: _Grader, timeline: Timeline, reached: int, num_train: int
) -> tuple[SavedEpoch, int]:
    """Evaluate a saved epoch; return it and the step whose weights it holds."""
    from rueda.assess.watch import fingerprint

    seconds = max(0.0, file.lstat().st_ctime_ns / 1e9 - timeline.begin)  # the kernel's time, which a script cannot set
    state, problem = _load(file, grader)
    if state is None:
        return SavedEpoch(number, 0.0, 0.0, seconds, 0, problem), reached
    own, public = grader.accuracies(state)
    weights = frozenset(fingerprint(state[name]) for name in grader.names)
    step = timeline.step_of(weights)
    seconds = max(seconds, timeline.time_of(weights) - timeline.begin)  # a mapped file changes without its time
    examples = timeline.examples(reached, step)
    note = ""
    if step == 0:
        note = "its weights are not those after any step of this training"
    elif step <= reached:
        note = "its weights are those of an earlier epoch"
    elif examples < _WHOLE * num_train:
        note = f"only {examples:,} different training examples were read since the epoch before"
    return SavedEpoch(number, own, public, seconds, examples, note), max(step, reached)


def _load(file: Path, grader: _Grader) -> tuple[dict[str, Any] | None, str]:
    import torch

    if file.is_symlink() or not file.is_file():
        return None, "it is no plain file"
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file may cause
        return None, f"it cannot be loaded as a state dict ({type(error).__name__})"
    wanted = {name: tuple(value.shape) for name, value in grader.model.state_dict().items()}
    if not isinstance(found, dict):
        return None, f"expected a state dict, got {type(found).__name__}"
    plain = {str(name).removeprefix("module."): value for name, value in found.items()}
    shapes = {name: tuple(value.shape) for name, value in plain.items() if isinstance(value, torch.Tensor)}
    if shapes != wanted:
        odd = sorted(set(wanted.items()) ^ set(shapes.items()))[0][0]
        return None, f"it is not the task's model: {odd} is missing, unknown or of another shape"
    if not all(
        one.is_floating_point() and one.layout == torch.strided and one.device.type == "cpu" for one in plain.values()
    ):
        return None, "its tensors are not plain numbers"
    return {name: value.float() for name, value in plain.items()}, ""
