"""A Keras model to be measured: ``rueda measure FILE.py`` takes a file that defines one as ``task``.

::

    import keras
    from rueda.tasks import KerasTask

    def model():
        made = keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)])
        made.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return made

    task = KerasTask(name="mine", model=model, train=lambda: (x_train, y_train), batch=64)

It works with Keras 3 on TensorFlow, torch and JAX (``KERAS_BACKEND``). A Keras model is trained by its own script
(:mod:`rueda.hvd`); the other commands take a :class:`rueda.Task`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rueda.errors import TaskError
from rueda.records.task_file import TaskFile


@dataclass(frozen=True, kw_only=True)
class KerasTask:
    """A Keras model and its training data."""

    name: str
    """the name in reports and folders"""
    model: Callable[[], Any]
    """builds and compiles the model"""
    train: tuple[Any, Any] | Callable[[], tuple[Any, Any]]
    """inputs and targets, as ``model.fit`` takes them in arrays, or a function that loads them"""
    batch: int = 32
    """the batch with which one worker trains, as ``model.fit``'s ``batch_size``"""
    file: TaskFile | None = field(default=None, compare=False, repr=False)
    """the file that defines it"""

    def load(self) -> tuple[Any, Any]:
        """Load the inputs and targets."""
        data: Any = self.train() if callable(self.train) else self.train
        if not isinstance(data, tuple) or len(data) != 2:
            expected, do = "a tuple (inputs, targets) of arrays", "return both"
            raise TaskError(f"the data of task {self.name}", expected=expected, got=type(data).__name__, do=do)
        return data

    def build(self) -> Any:
        """Build the model, which must be compiled."""
        model = self.model()
        if not getattr(model, "compiled", False):
            expected, do = "a compiled Keras model", "call its compile() in the function"
            raise TaskError(f"the model of task {self.name}", expected=expected, got=type(model).__name__, do=do)
        return model
