"""Updates of a model that is cut into the stages of a pipeline; beside data parallelism, if there are several.

Each worker's optimizer updates the parameters of its own stages. What needs the whole model is exchanged: the norm of
the gradient, to clip it and to see whether it is finite; the weight of the update, which only the last stage knows; and
gradients of parameters that several stages share. With several pipelines, gradients are averaged over the workers that
have the same stage.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_
from torch.optim import Optimizer

from rueda.errors import RecipeError
from rueda.optim.meters import PartsMeter
from rueda.records import Recipe
from rueda.tasks import Task
from rueda.tasks.step import Losses
from rueda.train.micro_batches import MicroBatch, join
from rueda.train.parallel.gather_stages import (
    gather_model_state,
    gather_optimizer_state,
    load_model_state,
    own_optimizer_state,
)
from rueda.train.parallel.pipeline import Pipeline
from rueda.train.parallel.stages import is_kept
from rueda.train.parallel.tied import TiedParameters
from rueda.train.update import Updater
from rueda.train.update_weight import UpdateWeight, with_noise
from rueda.world import World
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
    ) -> None:
        super().__init__(task, recipe, world, model, nn.Identity(), optimizer, {})
        self.pipeline = pipeline
        self._tied, self._group, self._data_group = tied, pipeline_group, data_group
        self._num_pipelines = 1 if data_group is None else dist.get_world_size(data_group)
        self._pipeline_number = 0 if data_group is None else dist.get_rank(data_group)
        self._step_number = 0

    def begin(self, step: int) -> None:
        """Seed the random numbers of a step by the place of the pipeline, since its workers read the same batch."""
        self._step_number = step
        seed_worker(self._recipe.seed, self._pipeline_number, step)

    def _noise(self, rank: int, num_examples: int, step: int) -> Tensor | None:
        return super()._noise(self._pipeline_number, num_examples, step)

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
        share = self._mean_share_of_pipeline(whole.num_examples)

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
        self._average_gradients()
        return 1.0 if weight is None else self._rescale(weight, round(share * self._num_pipelines), meter)

    def _mean_share_of_pipeline(self, num_examples: int) -> float:
        """Return the examples of the update divided by the number of pipelines."""
        if self._mean_share is None:
            return float(num_examples)
        return self._mean_share * self._world.size / self._num_pipelines

    def _average_gradients(self) -> None:
        """Average the gradients over the workers that have the same stages, in one all-reduce for each dtype."""
        if self._data_group is None:
            return
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            by_dtype.setdefault(parameter.grad.dtype, []).append(parameter.grad)
        for gradients in by_dtype.values():
            flat = torch.cat([one.reshape(-1) for one in gradients])
            dist.all_reduce(flat, group=self._data_group)
            flat /= self._num_pipelines
            pieces = torch.split(flat, [one.numel() for one in gradients])
            torch._foreach_copy_(gradients, [piece.view_as(one) for piece, one in zip(pieces, gradients, strict=True)])

    def _gradient_norm(self) -> Tensor:
        """Return the norm of the gradient of the whole model; a shared parameter counts once."""
        own = [one.grad for one in self._parameters if one.grad is not None and self._tied.is_counted[id(one)]]
        device = self._world.device
        total = torch.zeros((), device=device) if not own else torch.nn.utils.get_total_norm(own).square()
        total = total.to(torch.float64 if device.type == "cpu" else torch.float32)
        dist.all_reduce(total, group=self._group)
        return total.sqrt().to(self._parameters[0].dtype if self._parameters else torch.float32)

    def _clipped_norm(self) -> Tensor | None:
        """Clip the gradient by the norm over all stages; without clipping the norm tells whether it is finite."""
        norm = self._gradient_norm()
        if self._recipe.clip is not None:
            clip_grads_with_norm_(self._parameters, self._recipe.clip, norm)
        return norm

    def synchronize_buffers(self) -> None:
        """Make the buffers of this worker's stages equal in all pipelines."""
        if self._data_group is None:
            return
        for buffer in self._model.buffers():
            if is_kept(buffer) and buffer.is_floating_point():
                dist.all_reduce(buffer, group=self._data_group)
                buffer /= self._num_pipelines

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
        with torch.inference_mode(False), self._autocast:
            return self.pipeline.compute_losses(batch, num_examples)
