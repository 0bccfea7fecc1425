"""Rehearsal of workers that make updates of their own between two exchanges (:mod:`rueda.train.parameter_exchange`).

Such workers differ in their parameters, their optimizer state and their buffers. So each virtual worker has a model, an
optimizer and an :class:`~rueda.train.update.Updater` of its own, whose code is that of a real worker; one after the
other makes its update. The memory is N times that of a model and its optimizer state. While gradients are still
averaged at every update (``sync_from_epoch``), the virtual workers share one model as in any rehearsal.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rueda.data.nest import map_tensors
from rueda.errors import NonFiniteError, RecipeError
from rueda.train.buffers import other_buffers, running_statistics, write_buffers, write_running_statistics
from rueda.train.divergence import ADVICE
from rueda.train.micro_batches import WorkerBatches
from rueda.train.optimizers import build_optimizer
from rueda.train.parameter_exchange import flat, write_flat
from rueda.train.rehearsal import Rehearsal
from rueda.train.step_module import StepModule
from rueda.train.update import Updater
from rueda.world.host_memory import available_bytes

_COPIES = 3
"""a worker's parameters, and optimizer state of up to twice their size"""


class LocalRehearsal(Rehearsal):
    """Computes the updates of ``recipe.workers`` virtual workers, each with parameters of its own."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._workers: list[Updater] = []
        needed = _COPIES * self._recipe.workers * sum(one.nbytes for one in self._parameters)
        free = available_bytes() if self._world.device.type == "cpu" else None
        if free is not None and needed > free:
            raise RecipeError(
                f"rehearsed workers that exchange parameters have a model each: {self._recipe.workers} need about "
                f"{needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free; rehearse fewer, or set sync_every = 1"
            )

    def begin_local(self) -> None:
        """Give each virtual worker a copy of the model and of the optimizer's state, if it has none yet."""
        if self.exchange is not None:
            return
        super().begin_local()
        assert isinstance(self._compute, StepModule), "a rehearsal is alone"
        state = self.optimizer.state_dict()
        for _ in range(self._size):
            model = copy.deepcopy(self._model).train()
            called: nn.Module = torch.compile(model) if self._recipe.compile else model  # type: ignore[assignment]
            step = self._compute.with_model(called)
            optimizer = build_optimizer(self._recipe, model, self._task.optimizer)
            worker = Updater(self._task, self._recipe, self._world, model, step, optimizer, {})
            optimizer.load_state_dict(map_tensors(torch.clone, state))
            worker.exchange = self.exchange  # it says that the updates are its own; the exchange is made here
            self._workers.append(worker)

    def end_local(self) -> None:
        """Drop the workers' copies, since the training has gone back."""
        super().end_local()
        self._workers.clear()

    def update(
        self, batches: WorkerBatches, *, rate: float, step: int, measure: bool = False, num_examples: int | None = None
    ) -> None:
        """Make one update of each virtual worker, and an exchange if one is due; see :meth:`Updater.update`."""
        if self.exchange is None:
            super().update(batches, rate=rate, step=step, measure=measure, num_examples=num_examples)
            return
        self.reading = None
        for rank, worker in enumerate(self._workers):
            self._streams.enter(rank, step)
            worker.totals, worker.timer, worker.sigma = self.totals, self.timer, self.sigma
            worker.update_own(batches[rank], rate=rate, step=step, rank=rank)
        if not self.exchange.exchange(step + 1, [worker.named for worker in self._workers], self._begin_mean):
            raise NonFiniteError(f"nan or inf in the parameters of a worker: {ADVICE}")

    def _begin_mean(self, own: list[Tensor]) -> Callable[[], Tensor]:
        """Return the mean of the virtual workers' vectors, as soon as it is asked for."""
        mean = sum(own[1:], own[0]) / self._size
        return lambda: mean

    def synchronize_buffers(self) -> None:
        """Write the mean of the workers' running statistics into the model, and rank 0's other buffers into all."""
        super().synchronize_buffers()
        if not self._workers:
            return
        models = [worker.model for worker in self._workers]
        write_buffers(self._model.buffers(), list(models[0].buffers()))
        statistics = [one for model in models if (one := running_statistics(model)) is not None]
        if statistics:
            write_running_statistics(self._model, torch.stack(statistics).mean(0))
        first = list(other_buffers(models[0]).values())
        for model in models[1:]:
            write_buffers(other_buffers(model).values(), first)

    @contextmanager
    def mean_parameters(self) -> Iterator[None]:
        """Write the mean of the workers' parameters into the model."""
        self.settle()
        yield

    def settle(self) -> None:
        """Write the mean of the workers' parameters into the model."""
        if self._workers:
            vectors = [flat(list(worker.named.values())) for worker in self._workers]
            write_flat(list(self.named.values()), sum(vectors[1:], vectors[0]) / self._size)

    def states_of_workers(self) -> list[dict[str, Any]]:
        """Return the own states of all virtual workers."""
        return [worker.own_state() for worker in self._workers]

    def load_states_of_workers(self, states: list[dict[str, Any]]) -> None:
        """Take over the states, if there are as many as workers; otherwise all keep the mean."""
        if len(states) == self._size:
            for worker, state in zip(self._workers, states, strict=True):
                worker.load_own_state(state)
