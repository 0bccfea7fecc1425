"""The callbacks of ``horovod.keras``: broadcast, averaged metrics, warm-up and schedules of the learning rate.

A callback is a subclass of the ``Callback`` of the script's Keras, Keras 3 or tf_keras, which is known when the
callback is asked for: ``hvd.callbacks.MetricAverageCallback`` is made for it then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from rueda.hvd.basics import rank, size
from rueda.hvd.keras import family as families
from rueda.hvd.keras.variables import broadcast_variables, optimizer_variables
from rueda.hvd.torch.mpi_ops import allreduce
from rueda.optim.adapters import momentum_factor
from rueda.optim.schedules import GradualWarmup


class _Hooks:
    """Lets a callback of Keras 3 run in a callback list of tf_keras, or the reverse; the list needs these members."""

    _supports_tf_logs = False
    _chief_worker_only = None

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False


class BroadcastGlobalVariables(_Hooks):
    """Broadcasts the weights of the model and the state of its optimizer from one rank to all, once.

    It does so when training begins, if all variables exist by then, as in Keras 3, so that the first step is taken from
    equal weights. Otherwise it does so after the first batch, as Horovod does.

    Args:
        root_rank: the rank whose variables are broadcast.
        device: accepted for compatibility with Horovod.
        local_variables: a variable or several that are not broadcast; see :meth:`register_local_var`.
    """

    model: Any

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank, self.device, self.broadcast_done = root_rank, device, False
        variables = [] if local_variables is None else local_variables
        self._local = [variables] if hasattr(variables, "assign") else [*variables]
        if not all(hasattr(variable, "assign") for variable in self._local):
            raise ValueError("local_variables: expected variables, got something else; give layer.weights")

    def register_local_var(self, var: Any) -> None:
        """Leave a variable to each worker: it is not broadcast."""
        self._local.append(var)

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcast, if the variables exist."""
        model = self.model
        if families.family_of(model) == families.KERAS and model.built:
            optimizer = getattr(model, "optimizer", None)
            if optimizer is not None and not optimizer.built:
                optimizer.build(model.trainable_variables)
            self._broadcast()

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast after the first batch, if that has not been done."""
        self._broadcast()

    def _broadcast(self) -> None:
        if self.broadcast_done:
            return
        model, own = self.model, {id(variable) for variable in self._local}
        family = families.family_of(model)
        for variables in (model.weights, optimizer_variables(getattr(model, "optimizer", None))):
            broadcast_variables([v for v in variables if id(v) not in own], self.root_rank, family=family)
        self.broadcast_done = True


class MetricAverage(_Hooks):
    """Averages the metrics of an epoch over all workers, in place, for the callbacks that come after it.

    Args:
        device: accepted for compatibility with Horovod.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device

    def _implements_train_batch_hooks(self) -> bool:
        return False

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Replace the values by their averages."""
        if not logs or size() == 1:
            return
        names = sorted(logs)
        values = torch.tensor([float(logs[name]) for name in names], dtype=torch.float64)
        logs.update(zip(names, allreduce(values, name="MetricAverageCallback").tolist(), strict=True))


class LearningRateSchedule(_Hooks):
    """Multiplies the initial learning rate by a function of the epoch, with momentum correction.

    SGD with momentum keeps v <- m v - rate g in Keras, which includes the rate: when the rate changes, v is multiplied
    by the ratio of the rates (Goyal et al. 2017, section 3; :func:`rueda.optim.adapters.correct_momentum`). Horovod
    multiplies m for one step instead, which is the same, but cannot be done in a compiled step of today's Keras.

    Args:
        initial_lr: the rate that is multiplied.
        multiplier: a function of the epoch; or a constant c, for c ** (epoch - start_epoch).
        start_epoch: the first epoch in which the rate is changed.
        end_epoch: the first epoch in which it is no longer changed; None: there is none.
        staircase: change the rate at the beginning of an epoch only; otherwise at every batch, with fractional epochs.
        momentum_correction: correct the momentum of optimizers that have one.
        steps_per_epoch: batches in an epoch; None: as Keras says.
    """

    model: Any
    params: dict[str, Any]

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr, self.start_epoch, self.end_epoch = initial_lr, start_epoch, end_epoch
        self.staircase, self.momentum_correction, self.steps_per_epoch = staircase, momentum_correction, steps_per_epoch
        self.current_epoch: int = 0
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            constant = float(multiplier)
            self.multiplier = lambda epoch: constant ** (epoch - start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        """Find out how many batches an epoch has."""
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self._autodetect_steps_per_epoch()

    def _autodetect_steps_per_epoch(self) -> int:
        if self.params.get("steps"):
            return int(self.params["steps"])
        if self.params.get("samples") and self.params.get("batch_size"):
            return int(self.params["samples"]) // int(self.params["batch_size"])
        raise ValueError(
            "Could not autodetect the number of steps per epoch. Please specify the steps_per_epoch parameter to the "
            f"{type(self).__name__}() or upgrade to the latest version of Keras."
        )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Remember the epoch."""
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the learning rate, if this epoch lies between ``start_epoch`` and ``end_epoch``."""
        if self.current_epoch < self.start_epoch or (
            self.end_epoch is not None and self.current_epoch >= self.end_epoch
        ):
            return
        if self.staircase and batch == 0:
            self._adjust_learning_rate(self.current_epoch)
        elif not self.staircase:
            self._adjust_learning_rate(self.current_epoch + batch / (self.steps_per_epoch or 1))

    def _adjust_learning_rate(self, epoch: float) -> None:
        old, new = learning_rate(self.model.optimizer), self.initial_lr * self.multiplier(epoch)
        if new == old:
            return
        model = self.model
        model.optimizer.learning_rate = new
        if self.momentum_correction:
            factor = momentum_factor(old, new)
            for variable in momentum_variables(model) if factor != 1.0 else ():
                variable.assign(variable * factor)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log the rate."""
        if logs is not None:
            logs["lr"] = learning_rate(self.model.optimizer)


class LearningRateWarmup(LearningRateSchedule):
    """Raises the learning rate linearly from initial_lr / size to initial_lr (Goyal et al. 2017, section 2.2).

    Args:
        initial_lr: the rate at the end of the warm-up, which is the scaled rate.
        warmup_epochs: epochs of the warm-up.
        momentum_correction: correct the momentum of optimizers that have one.
        steps_per_epoch: batches in an epoch; None: as Keras says.
        verbose: 1: rank 0 prints a line at the end of the warm-up.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # The rate of a batch is that at its end, so that it is a round number at the end of each epoch.
            return GradualWarmup(1.0 / size(), 1.0, warmup_epochs)(epoch + 1.0 / (self.steps_per_epoch or 1))

        end: Any = warmup_epochs
        super().__init__(initial_lr, multiplier, 0, end, False, momentum_correction, steps_per_epoch)
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log the rate, and say when the warm-up is over."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0 and rank() == 0:
            rate = learning_rate(self.model.optimizer)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


class BestModel:
    """A ``ModelCheckpoint`` that keeps the best model; its ``filepath`` is set later, unless it is given.

    Args:
        monitor: the metric.
        verbose: 1: say when a model is saved.
        save_weights_only: save the weights alone.
        mode: ``min``, ``max`` or ``auto``.
        save_freq: ``epoch``, or a number of batches.
        filepath: the file.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        filepath: Any = None,
    ) -> None:
        until_given = "best.weights.h5" if save_weights_only else "best.keras"  # Keras 3 refuses None
        super().__init__(  # type: ignore[call-arg]
            filepath=filepath if filepath is not None else until_given,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath: Any = filepath

    def _save_model(self, *args: Any, **kwargs: Any) -> Any:
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint: expected a filepath, got None; set it, or give filepath= to it")
        return super()._save_model(*args, **kwargs)  # type: ignore[misc]


def learning_rate(optimizer: Any) -> float:
    """Return the learning rate of an optimizer as a number."""
    rate = optimizer.learning_rate
    return float(rate.numpy() if hasattr(rate, "numpy") else rate)


def momentum_variables(model: Any) -> list[Any]:
    """Return the momentum of every weight, of an optimizer that has an attribute ``momentum``: SGD and RMSprop."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if not hasattr(optimizer, "momentum"):
        return []
    for name in ("momentums", "_momentums"):
        found = getattr(optimizer, name, None)
        if found:
            return [variable for variable in found if variable is not None]
    if "momentum" in getattr(optimizer, "get_slot_names", list)():
        return [optimizer.get_slot(variable, "momentum") for variable in model.trainable_variables]
    return []


_CLASSES: dict[str, tuple[type, str]] = {
    "BroadcastGlobalVariablesCallback": (BroadcastGlobalVariables, "Callback"),
    "MetricAverageCallback": (MetricAverage, "Callback"),
    "LearningRateScheduleCallback": (LearningRateSchedule, "Callback"),
    "LearningRateWarmupCallback": (LearningRateWarmup, "Callback"),
    "BestModelCheckpoint": (BestModel, "ModelCheckpoint"),
}
__all__ = [*_CLASSES]


@cache
def make_callback(mixin: type, name: str, base: str, family: str) -> type:
    """Return a callback class for one Keras."""
    own = {"__doc__": mixin.__doc__, "__module__": __name__}
    return type(name, (mixin, getattr(families.load(family).callbacks, base)), own)


def __getattr__(name: str) -> Any:
    if name in _CLASSES:
        mixin, base = _CLASSES[name]
        return make_callback(mixin, name, base, families.current_family())
    from rueda.hvd.names import no_attribute

    raise no_attribute("horovod.keras.callbacks", name)
