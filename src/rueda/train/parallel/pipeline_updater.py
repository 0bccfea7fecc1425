"""Updates of a model that is cut into the stages of a pipeline; beside data parallelism, if there are several.

Each worker's optimizer updates the parameters of its own stages. What needs the whole model is exchanged: the norm of
the gradient, to clip it and to see whether it is finite; the weight of the update, which only the last stage knows; and
gradients of parameters that several stages share. With several pipelines, gradients are averaged over the workers that
have the same stage.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from rueda.errors import RecipeError
from rueda.optim.meters import PartsMeter
from rueda.records import Recipe
from rueda.tasks import Task
from rueda.tasks.step import Losses
from rueda.train.micro_batches import MicroBatch, join
from rueda.train.parallel import gradients
from rueda.train.parallel.pipeline import Pipeline
from rueda.train.parallel.stages import is_kept
from rueda.train.parallel.tied import TiedParameters
from rueda.train.parallel.whole_state import (
    gather_model_state,
    gather_optimizer_state,
    load_model_state,
    own_optimizer_state,
)
from rueda.train.update import Updater, refuse_gather
from rueda.train.update_weight import UpdateWeight, with_noise
from rueda.world import World
from rueda.world.gathering import gathering_alone, gathering_by
from rueda.world.seeds import seed_worker


class PipelineUpdater(Updater):
    """Computes updates of the stages of this worker.

    Args:
        task: provides the step and the metrics.
        recipe: precision, clipping and noise.
        world: all workers.
        model: the model; what belongs to other workers is not trained here.
        optimizer: the optimizer of this worker's parameters.
        pipeline: the pipeline of this worker.
        tied: the parameters that it shares with others.
        data_group: the workers that have the same stages in other pipelines; None if there is one pipeline.
        pipeline_group: the workers of this pipeline.
        place: the place of this pipeline among all.
    """

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        world: World,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        pipeline: Pipeline,
        tied: TiedParameters,
        pipeline_group: dist.ProcessGroup | None,
        data_group: dist.ProcessGroup | None,
        place: World,
    ) -> None:
        super().__init__(task, recipe, world, model, nn.Identity(), optimizer, {}, place=place)
        self.pipeline = pipeline
        self._tied, self._group, self._data_group = tied, pipeline_group, data_group
        self._step_number = 0

    def begin(self, step: int) -> None:
        """Seed the random numbers of a step by the place of the pipeline, since its workers read the same batch."""
        self._step_number = step
        super().begin(step)

    def _gathering(self) -> AbstractContextManager[None]:
        """Return a context in which a step may not gather: the last stage sees a micro-batch at a time."""
        return gathering_by(refuse_gather)

    def _accumulate_gradients(
        self, parts: list[MicroBatch], noise: Tensor | None, meter: PartsMeter | None = None
    ) -> Tensor | float:
        """Run the batch through the pipeline and make its gradients those of all examples of the update."""
        whole = join(parts)
        if whole is None:
            do = "pad all examples to one length, or use parallel = data"
            raise RecipeError("the micro-batches of a pipeline", expected="one shape", got="different ones", do=do)
        if self.pipeline.rank > 0:  # the batch is read: from here on each stage draws numbers of its own
            seed_worker(self._recipe.seed, self._world.size + self._world.rank, self._step_number)
        share = self._mean_share or float(whole.num_examples)

        def weigh(result: Losses, start: int, count: int) -> Tensor:
            return self.scaler.scale(with_noise(result, noise, start, count).total() / share)

        weight = None if self._task.step is None else UpdateWeight(self._world)
        with self._autocast:
            found = self.pipeline.accumulate_gradients(whole.batch, whole.num_examples, weigh)
        self._mark("backward")
        for result, batch, count in found:
            self.totals.add(result, batch, count)
            if weight is not None:
                weight.add(result)
        if weight is not None:
            weight.exchange()
        self._tied.add_gradients()
        if self._data_group is not None:
            self._check_all_used()
            gradients.average(self._parameters, self._data_group)
        return 1.0 if weight is None else self._rescale(weight, round(share * self._place.size), meter)

    def _clipped_norm(self) -> Tensor | None:
        """Clip the gradient by the norm over all stages, in which a shared parameter counts once.

        Without clipping return a number that is finite if the gradient is.
        """
        if self._recipe.clip is None:
            return self._finite.sum_over(self._group, self._world.device)
        counted = [one for one in self._parameters if self._tied.is_counted[id(one)]]
        norm = gradients.norm_of(counted, self._world.device, over=(self._group,))
        gradients.clip_by_norm(self._parameters, self._recipe.clip, norm)
        return norm

    def synchronize_buffers(self) -> None:
        """Make the buffers of this worker's stages equal in all pipelines."""
        if self._data_group is None:
            return
        for buffer in self._model.buffers():
            if is_kept(buffer) and buffer.is_floating_point():
                dist.all_reduce(buffer, group=self._data_group)
                buffer /= self._place.size

    def model_state(self) -> dict[str, Any]:
        """Gather the state of the whole model on the first worker of each pipeline."""
        return dict(gather_model_state(self._model, self._group))

    def optimizer_state(self) -> dict[str, Any]:
        """Gather the optimizer's state of the whole model on the first worker of each pipeline."""
        return gather_optimizer_state(self._model, self.optimizer, self._group)

    def load_model_state(self, state: dict[str, Any]) -> None:
        """Load the state of this worker's stages."""
        load_model_state(self._model, state)

    def own_optimizer_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the optimizer's state of this worker's stages."""
        return own_optimizer_state(self._model, self.optimizer, state)

    def losses(self, model: nn.Module, batch: Any, num_examples: int) -> list[tuple[Losses, Any, int]]:
        """Compute the losses of a batch without gradients; only the last stage gets any."""
        with torch.inference_mode(False), self._autocast, gathering_alone():
            return self.pipeline.compute_losses(batch, num_examples)
