"""The states of a training with TensorFlow or Keras that :mod:`rueda.hvd.common.elastic` commits and restores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rueda.hvd.basics import rank
from rueda.hvd.bridge.tensorflow import tf
from rueda.hvd.common.elastic import ObjectState, run
from rueda.hvd.keras.elastic import KerasState
from rueda.hvd.tensorflow.functions import broadcast_object, broadcast_variables

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]


class TensorFlowState(ObjectState):
    """Variables, and any other values that are given by name.

    Args:
        variables: the variables; None: the global ones of a TensorFlow 1 graph.
        session: accepted for compatibility with Horovod: no TensorFlow session is needed.
        kwargs: other values, such as ``batch=0``; they become attributes.
    """

    def __init__(self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        self.variables = list(variables or tf.compat.v1.global_variables())
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **kwargs)

    def save(self) -> None:
        """Copy the variables and values in memory."""
        self._values = [tf.identity(tf.convert_to_tensor(variable)) for variable in self.variables]
        super().save()

    def restore(self) -> None:
        """Give the variables and values what was last saved."""
        for variable, value in zip(self.variables, self._values, strict=True):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Give all ranks the variables and values of rank 0."""
        broadcast_variables(self.variables, self.root_rank)
        super().sync()  # which saves them


class TensorFlowKerasState(KerasState):
    """A Keras model and its optimizer, and any other values that are given by name.

    Args:
        model: the model, built.
        optimizer: its optimizer; None: the one of ``model.compile``.
        backend: accepted for compatibility with Horovod.
        kwargs: other values, such as ``batch=0, epoch=0``; they become attributes.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, **kwargs)
