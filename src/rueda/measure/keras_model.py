"""Measure a Keras model: time and memory of its steps, and its gradient noise scale, on any backend of Keras 3.

Steps are those of ``model.train_on_batch``, with the model's own optimizer, loss and metrics. Keras compiles a step as
a whole, so its stages are told apart by differences: the *forward* pass is the time of ``test_on_batch``; a step with
an optimizer that only records the gradients adds the *backward* pass; the rest is the *optimizer*.

The same recording optimizer gives the gradients of the two halves of a batch to the estimator of the noise scale
(:mod:`rueda.optim.noise_scale`), while the model's own optimizer trains on the whole batch. It keeps the gradients in
variables, so nothing here depends on how a backend differentiates.

Memory is the peak of the process on a CPU; on a GPU it is known to torch only, and not measured for TensorFlow and JAX.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import torch
from torch import nn

from rueda.errors import TaskError
from rueda.measure.clock import STAGES
from rueda.measure.noise import FEWEST_STEPS, INTERVALS, MOST_EPOCHS
from rueda.measure.steps import Block
from rueda.optim.noise_scale import Estimator
from rueda.records import Recipe
from rueda.records.profile import NoiseScale
from rueda.records.recipe.batches import check_batches
from rueda.records.recipe.default_rates import DEFAULT_RATES
from rueda.tasks.keras_task import KerasTask
from rueda.world import instruction_sets

_PRECISION = {"mixed_float16": "fp16", "mixed_bfloat16": "bf16", "float64": "float64"}


class GradientRecorder(keras.optimizers.Optimizer):  # type: ignore[misc]
    """An optimizer that keeps the gradients and leaves the variables as they are."""

    def __init__(self) -> None:
        super().__init__(learning_rate=0.0, name="gradient_recorder")

    def build(self, variables: list[Any]) -> None:
        """Make a variable for each gradient."""
        if not self.built:
            super().build(variables)
            self.recorded = [self.add_variable_from_reference(variable, name="gradient") for variable in variables]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Keep a gradient."""
        self.assign(self.recorded[self._get_variable_index(variable)], gradient)


class KerasStepper:
    """Makes the steps of a Keras model at any batch; it has the methods of :class:`rueda.measure.steps.Stepper`."""

    def __init__(self, task: KerasTask, device: torch.device) -> None:
        self.device = device
        if device.type == "cpu":  # before anything else: the model may compute in mixed_bfloat16
            instruction_sets.protect()
        self._inputs, self._targets = task.load()
        self.num_examples = len(keras.tree.flatten(self._inputs)[0])
        self._model = task.build()
        if not self._model.built:
            self._model(self._rows(range(min(2, self.num_examples)))[0])
        if not self._model.trainable_variables:
            raise TaskError(f"the model of task {task.name}", expected="weights to train", got=0, do="add layers")
        self._own, self._recorder = self._model.optimizer, GradientRecorder()
        for optimizer in (self._own, self._recorder):
            optimizer.build(self._model.trainable_variables)
        self._functions: dict[int, Any] = {}
        self._shares: dict[int, dict[str, float]] = {}
        self._next = 0
        self._start = [np.array(value) for value in self._values()]

    def recipe(self, batch: int) -> Recipe:
        """Describe how the model is trained, as far as a recipe can."""
        name, policy = type(self._own).__name__.lower(), self._model.dtype_policy.name
        known = {"optimizer": name} if name in DEFAULT_RATES else {}
        rate = float(f"{float(keras.ops.convert_to_numpy(self._own.learning_rate)):.7g}")  # float32 as it was written
        return Recipe(batch=batch, rate=rate, precision=_PRECISION.get(policy, "float32"), **known)  # type: ignore[arg-type]

    def outline(self) -> nn.Module:
        """Return a module with parameters of the same shapes and types as the trained weights, without memory."""
        weights = self._model.trainable_variables
        return nn.ParameterList([
            nn.Parameter(torch.empty(tuple(one.shape), dtype=getattr(torch, one.dtype), device="meta"))
            for one in weights
        ])  # fmt: skip

    def check(self, batches: Sequence[int]) -> None:
        """Refuse a batch that is larger than the training set."""
        check_batches(batches, self.num_examples)

    def block(self, batch: int, num_steps: int, *, stages: bool) -> Block:
        """Make steps at a batch and time them; stages are shares of the step that were measured once for each batch."""
        if stages and batch not in self._shares:
            self._shares[batch] = self._measure_shares(batch)
        busy = time.process_time()
        seconds = self._time(self._train, batch, num_steps)
        shares = self._shares[batch] if stages else None
        return Block(
            seconds,
            None if shares is None else {name: share * seconds for name, share in shares.items()},
            (time.process_time() - busy) / num_steps if self.device.type == "cpu" else None,
        )

    def free_memory(self) -> None:
        """Do nothing: the backend keeps its memory."""

    def restore(self) -> None:
        """Restore the weights and the optimizer's state as they were before the measurement."""
        for variable, value in zip(self._variables(), self._start, strict=True):
            variable.assign(value)

    def measure_noise(self, batch: int, *, seconds: float, intervals: int = INTERVALS) -> tuple[NoiseScale, ...]:
        """Train for a short time; return the noise scale of each interval, or nothing if it cannot be measured.

        Args:
            batch: the batch, whose halves are compared.
            seconds: approximate duration of all intervals, at most two epochs; 0 measures nothing.
            intervals: the number of values to measure.
        """
        half = batch // 2
        if seconds <= 0 or half < 2 or 2 * half > self.num_examples:
            return ()
        draw, step, found = np.random.default_rng(0), 0, []
        most_steps = max(intervals * FEWEST_STEPS, int(MOST_EPOCHS * self.num_examples / (2 * half)))
        for number in range(intervals):
            estimator, started, begun = Estimator(), time.perf_counter(), step
            while step - begun < (most_steps - begun) // (intervals - number):
                rows = draw.choice(self.num_examples, 2 * half, replace=False)
                parts = [self._gradient(rows[:half]), self._gradient(rows[half:])]
                mean = [(first + second) / 2 for first, second in zip(*parts, strict=True)]
                estimator.observe(sum(map(_square, parts)), _square(mean), 2, half)
                self._train(rows)
                step += 1
                if estimator.num_steps >= FEWEST_STEPS and time.perf_counter() - started > seconds / intervals:
                    break
            if estimator.num_steps >= FEWEST_STEPS:
                epochs = step * 2 * half / self.num_examples
                found.append(estimator.estimate(step=step, epochs=epochs, source="halves"))
        return tuple(found)

    def _variables(self) -> list[Any]:
        return [*self._model.variables, *self._own.variables]

    def _values(self) -> list[Any]:
        return [keras.ops.convert_to_numpy(variable) for variable in self._variables()]

    def _rows(self, rows: Any) -> tuple[Any, Any]:
        index = np.asarray(rows)
        return tuple(keras.tree.map_structure(lambda array: array[index], (self._inputs, self._targets)))

    def _use(self, optimizer: Any) -> None:
        """Let the model's training step use an optimizer; Keras compiles the step once for each."""
        model = self._model
        if model.optimizer is optimizer and model.train_function is not None:
            return
        model.optimizer, model.train_function = optimizer, self._functions.get(id(optimizer))
        model.make_train_function()
        self._functions[id(optimizer)] = model.train_function

    def _train(self, rows: Any) -> None:
        self._use(self._own)
        self._model.train_on_batch(*self._rows(rows))

    def _record(self, rows: Any) -> None:
        self._use(self._recorder)
        self._model.train_on_batch(*self._rows(rows))

    def _evaluate(self, rows: Any) -> None:
        self._model.test_on_batch(*self._rows(rows))

    def _gradient(self, rows: Any) -> list[Any]:
        self._record(rows)
        return [keras.ops.convert_to_numpy(one).astype(np.float64) for one in self._recorder.recorded]

    def _time(self, make: Callable[[Any], None], batch: int, num_steps: int) -> float:
        """Return the mean time of some steps on successive rows; Keras waits for the result of each."""
        started = time.perf_counter()
        for _ in range(num_steps):
            rows = np.arange(self._next, self._next + batch) % self.num_examples
            self._next = int(rows[-1]) + 1
            make(rows)
        return (time.perf_counter() - started) / num_steps

    def _measure_shares(self, batch: int) -> dict[str, float]:
        kinds = (self._evaluate, self._record, self._train)
        for make in kinds:  # compiles
            self._time(make, batch, 1)
        evaluate, record, whole = (min(self._time(make, batch, 1) for _ in range(3)) for make in kinds)
        forward = min(evaluate, whole)
        backward = min(max(record - forward, 0.0), whole - forward)
        parts = (0.0, forward, backward, whole - forward - backward)
        return {name: max(part, 0.0) / whole for name, part in zip(STAGES, parts, strict=True)}


def _square(gradient: Sequence[Any]) -> float:
    return float(sum(np.square(one).sum() for one in gradient))
