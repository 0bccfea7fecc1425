"""Updates of a model whose tensors are divided: sharded, split over a tensor group, or both; beside replicas or not.

The loop, the losses and their weights are those of data parallelism. What differs is how gradients are averaged (by the
reduce-scatter of a sharded model, or by one all-reduce over the replicas of a tensor group), that a norm is summed up
over the parts of the tensors, and that a checkpoint gathers them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from rueda.data.nest import map_tensors
from rueda.errors import RecipeError
from rueda.optim.meters import PartsMeter
from rueda.records import Recipe
from rueda.tasks import Task
from rueda.tasks.step import Losses
from rueda.train.micro_batches import MicroBatch
from rueda.train.parallel import gradients, sharding
from rueda.train.parallel.tensor_split import RowOrder
from rueda.train.parallel.whole_state import (
    load_model_state,
    load_tensors,
    own_optimizer_state,
    whole_optimizer_state,
    whole_tensors,
)
from rueda.train.update import Updater
from rueda.world import World
from rueda.world.gathering import gathering_alone


class DividedUpdater(Updater):
    """Computes updates of this worker's parts of the parameters.

    Args:
        task: provides the step and the metrics.
        recipe: precision, clipping and noise.
        world: all workers.
        model: the model, whose divided parameters are ``DTensor`` objects.
        step: computes the losses of a batch; a sharded one gathers the parameters and averages the gradients.
        optimizer: the optimizer of the parameters.
        place: this worker's place among those that divide the data.
        replicas: the workers that have the same parts and other examples, if the step does not average over them.
        order: the order of the rows of split matrices.
        sharers: the workers that have the other parts of this worker's model; None if these are all workers.
    """

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        world: World,
        model: nn.Module,
        step: nn.Module,
        optimizer: Optimizer,
        *,
        place: World,
        replicas: dist.ProcessGroup | None,
        order: RowOrder,
        sharers: dist.ProcessGroup | None,
    ) -> None:
        super().__init__(task, recipe, world, model, step, optimizer, {}, place=place)
        self._replicas, self._order, self._sharers = replicas, order, sharers
        self._root = step if isinstance(step, FSDPModule) else None

    @contextmanager
    def _reducing(self, *, is_last: bool) -> Iterator[None]:
        """Let a sharded model keep whole gradients inside the block, except for the last micro-batch."""
        if self._root is not None:
            self._root.set_requires_gradient_sync(is_last)
        yield

    def _skip_all_reduce_unless(self, *, is_last: bool) -> AbstractContextManager[Any]:
        return self._reducing(is_last=is_last)

    def _accumulate_gradients(
        self, parts: list[MicroBatch], noise: Tensor | None, meter: PartsMeter | None = None
    ) -> Tensor | float:
        factor = super()._accumulate_gradients(parts, noise, meter)
        gradients.settle(self._parameters)
        if self._replicas is not None:
            self._check_all_used()
            gradients.average(self._parameters, self._replicas)
        return factor

    def _losses_of(self, batch: Any) -> Losses:
        try:
            return super()._losses_of(batch)
        except RuntimeError as error:
            if "mixed torch.Tensor and DTensor" in str(error):
                raise RecipeError(
                    f"the step of task {self._task.name} reads the weights of a layer that it does not call, but with "
                    f"parallel = {self._recipe.parallel!r} they are divided outside of its forward pass; give the task "
                    "the layers that it calls: Task(layers=...)"
                ) from None
            raise

    def _clipped_norm(self) -> Tensor | None:
        """Clip the gradient by the norm of all parts; without clipping return a number that is finite if it is."""
        if self._recipe.clip is None:
            return self._finite.sum_over(self._sharers, self._world.device)
        norm = gradients.norm_of(self._parameters, self._world.device)
        gradients.clip_by_norm(self._parameters, self._recipe.clip, norm)
        return norm

    def gathered(self) -> AbstractContextManager[None]:
        """Hold the parameters of a sharded model on each worker inside the block."""
        return nullcontext() if self._root is None else sharding.gathered(self._root)

    def compute(self, model: nn.Module, batch: Any) -> Losses:
        """Compute the losses of a batch by the step that gathers the parameters."""
        result: Losses = self._compute(batch)
        return result

    def losses(self, model: nn.Module, batch: Any, num_examples: int) -> list[tuple[Losses, Any, int]]:
        """Compute the losses of a batch without gradients; of workers that share a batch, one gets them."""
        with torch.inference_mode(False), torch.no_grad(), self._autocast, gathering_alone():
            result = map_tensors(torch.clone, self.compute(model, batch))  # of what a collective still brings
        if self._root is not None:
            sharding.reshard(self._root)
        return [(result, batch, num_examples)] if self._counts else []

    # Checkpoints.

    def whole_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Gather tensors by the names of their parameters on rank 0."""
        return whole_tensors(tensors, self._order, keep=self._world.is_main)

    def load_whole_tensors(self, own: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Copy this worker's parts of whole tensors into its own."""
        load_tensors(own, state, self._order)

    def optimizer_state(self) -> dict[str, Any]:
        """Gather the optimizer's state of the whole model on rank 0."""
        return whole_optimizer_state(self._model, self.optimizer, self._order, keep=self._world.is_main)

    def load_model_state(self, state: dict[str, Any]) -> None:
        """Load this worker's parts of the state of the whole model."""
        load_model_state(self._model, state, self._order)

    def own_optimizer_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state of this worker's parts."""
        return own_optimizer_state(self._model, self.optimizer, state, self._order)
