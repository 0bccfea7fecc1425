"""``horovod.keras.elastic``: a model's state that is committed, restored and broadcast; callbacks that keep it.

The state holds the weights of the model and the variables of its optimizer in memory (:mod:`rueda.hvd.common.elastic`).
"""

from __future__ import annotations

from typing import Any

from rueda.hvd.basics import rank
from rueda.hvd.common.elastic import ObjectState, run
from rueda.hvd.keras import family as families
from rueda.hvd.keras.callbacks import make_callback
from rueda.hvd.keras.variables import broadcast_variables, optimizer_variables
from rueda.hvd.torch.functions import broadcast_object

__all__ = ["KerasState", "run"]


class KerasState(ObjectState):
    """The state of a training of Keras.

    Args:
        model: the model.
        optimizer: its optimizer, if it is not ``model.optimizer``.
        **kwargs: other values to keep, such as ``batch=0, epoch=0``; they become attributes.

    Raises:
        ValueError: the model is not built.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if not getattr(model, "built", True):
            raise ValueError("elastic state: expected a built model; call model.build(input_shape) first")
        self.model = model
        self.optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        if families.family_of(model) == families.KERAS and self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)  # so that all ranks have the same variables
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **kwargs)

    def _variables(self) -> list[Any]:
        if hasattr(self.model, "jax_state_sync"):  # on JAX the variables are those of the last epoch until then
            self.model.jax_state_sync()
        return [*self.model.weights, *optimizer_variables(self.optimizer)]

    def save(self) -> None:
        """Keep a copy of all variables and values in memory."""
        self._values = [families.as_numpy(variable).copy() for variable in self._variables()]
        super().save()

    def restore(self) -> None:
        """Return to the last copy; variables that an optimizer has made since become zero."""
        variables = self._variables()
        for variable, value in zip(variables, self._values, strict=False):
            variable.assign(value)
        for variable in variables[len(self._values) :]:
            variable.assign(variable * 0)
        super().restore()

    def sync(self) -> None:
        """Broadcast rank 0's variables and values to all ranks, and keep a copy."""
        broadcast_variables(self._variables(), root_rank=self.root_rank, family=families.family_of(self.model))
        super().sync()


class CommitState:
    """Commits the state every N batches and at the end of every epoch.

    Args:
        state: the state.
        batches_per_commit: N; a commit copies the model, so that more batches cost less.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state, self.batches_per_commit, self.batches_remaining = state, batches_per_commit, batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Count anew, so that all ranks commit after the same batches."""
        self.batches_remaining = self.batches_per_commit

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commit, if it is time."""
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.state.commit()
            self.batches_remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commit."""
        self.state.commit()


class UpdateBatchState:
    """Keeps the number of the batch in ``state.batch``, and shortens the epoch in which a training goes on.

    Args:
        state: the state.
    """

    params: dict[str, Any]

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state, self.steps_per_epoch = state, None

    def on_train_begin(self, logs: Any = None) -> None:
        """Forget the number of steps."""
        self.steps_per_epoch = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Subtract the batches that are done from the steps of this epoch."""
        if self.params.get("steps"):
            if self.steps_per_epoch is None:
                self.steps_per_epoch = self.params["steps"]
            self.params["steps"] = self.steps_per_epoch - self.state.batch

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Store the number of the batch in the state."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Set the number of the batch back to 0."""
        self.state.batch = 0


class UpdateEpochState:
    """Keeps the number of finished epochs in ``state.epoch``, also of those before a reset.

    Args:
        state: the state.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state, self.initial_epoch = state, state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Remember where this training begins; Keras counts from 0."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Count the epoch."""
        self.state.epoch = self.initial_epoch + epoch + 1


_CLASSES = {
    "CommitStateCallback": CommitState,
    "UpdateBatchStateCallback": UpdateBatchState,
    "UpdateEpochStateCallback": UpdateEpochState,
}


def __getattr__(name: str) -> Any:
    if name in _CLASSES:
        return make_callback(_CLASSES[name], name, "Callback", families.current_family())
    from rueda.hvd.names import no_attribute

    raise no_attribute("horovod.keras.elastic", name)
