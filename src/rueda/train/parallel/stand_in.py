"""Stand-ins for a model, so that a task's own step runs on the first and on the last stage of a pipeline.

A task's step calls the model with a batch's inputs and computes losses from its outputs. In a pipeline no worker has
the whole model. On the first stage the step is called with a stand-in that notes the inputs and goes no further
(:func:`inputs_of`); on the last stage with one that answers with the outputs of the pipeline (:func:`losses_of`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from rueda.errors import TaskError
from rueda.tasks import Task
from rueda.tasks.step import Losses


class ModelInputs(NamedTuple):
    """What a step passes to its model."""

    arguments: tuple[Any, ...]
    named: dict[str, Any]


class _Noted(Exception):
    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        self.inputs = inputs


class _Noting(nn.Module):
    def forward(self, *arguments: Any, **named: Any) -> Any:
        raise _Noted(ModelInputs(arguments, named))


class _Answering(nn.Module):
    def __init__(self, outputs: Any) -> None:
        super().__init__()
        self.outputs, self.num_calls = outputs, 0

    def forward(self, *arguments: Any, **named: Any) -> Any:
        self.num_calls += 1
        return self.outputs


def inputs_of(task: Task, batch: Any) -> ModelInputs:
    """Return what the step of a task passes to its model.

    Raises:
        TaskError: the step does not call the model as a function.

    >>> import torch
    >>> task = Task(name="t", model=nn.Identity, train=lambda: None, test=lambda: None)
    >>> inputs_of(task, (torch.ones(2), torch.zeros(2))).arguments
    (tensor([1., 1.]),)
    """
    try:
        task.run_step(_Noting(), batch)
    except _Noted as noted:
        return noted.inputs
    except AttributeError as error:
        raise TaskError(_refusal(task, f"it uses more of the model: {error}")) from None
    raise TaskError(_refusal(task, "it did not call the model"))


def losses_of(task: Task, outputs: Any, batch: Any) -> Losses:
    """Compute the losses of a batch from the outputs of the pipeline.

    Raises:
        TaskError: the step does not call the model exactly once.
    """
    model = _Answering(outputs)
    try:
        result = task.run_step(model, batch)
    except AttributeError as error:
        raise TaskError(_refusal(task, f"it uses more of the model: {error}")) from None
    if model.num_calls != 1:
        raise TaskError(_refusal(task, f"it called the model {model.num_calls} times"))
    return result


def _refusal(task: Task, found: str) -> str:
    found = found.splitlines()[0]
    return f"the step of task {task.name} must call model(inputs) once to run in a pipeline, but {found}; use data"
