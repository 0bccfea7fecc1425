"""Count the layers of a model for the parallel forms: parameters, activations and work of each, on the *meta* device.

The layers are those of :mod:`rueda.train.parallel.layer_names`. Work outside any layer, such as the output layer of a
language model that shares the embedding's weights, counts for the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn
from torch.func import functional_call

from rueda.data.nest import map_tensors, num_bytes, tensors
from rueda.records.model_layers import LayerWork
from rueda.tasks import Task
from rueda.tasks.step import Losses
from rueda.train.counting import SavedTensors, on_meta, without_statistics
from rueda.train.parallel.layer_names import layers_of
from rueda.train.parallel.tensor_plan import COLUMNS, split_plan
from rueda.train.step_module import StepModule
from rueda.train.training import Training
from rueda.world.gathering import gathering_alone


def count_layers(task: Task, model: nn.Module, batch: Any, examples: int) -> tuple[LayerWork, ...]:
    """Count a forward and a backward pass of a task layer by layer; no values are computed.

    Args:
        task: its step or its loss.
        model: the model.
        batch: a batch of the task.
        examples: the number of examples in it.
    """
    from torch.utils.flop_counter import FlopCounterMode  # only here: most trainings do not need it

    layers, plan = layers_of(model), split_plan(model, task.tensor_plan)
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    shapes = {f"model.{name}": on_meta(tensor) for name, tensor in named.items()}
    saved = SavedTensors(shapes.values())
    seen = {name: _Seen() for name in layers}
    owner = {module: layer for layer, modules in layers.items() for module in modules}
    with ExitStack() as stack:
        stack.enter_context(without_statistics(model))
        stack.enter_context(gathering_alone())
        counter = stack.enter_context(FlopCounterMode(display=False))
        for name, layer in owner.items():
            stack.enter_context(_watched(model.get_submodule(name), seen[layer], saved))
        between = _Between()
        for name, how in plan.items():
            layer = next(one for one in layers if name == one or name.startswith(f"{one}."))
            stack.enter_context(_split(model.get_submodule(name), how, seen[layer], saved, between))
        with saved.hooks():
            step = StepModule(task, model)
            result: Losses = functional_call(step, shapes, (map_tensors(on_meta, batch),))
            total = result.total()
        total.backward()  # type: ignore[no-untyped-call]
    flops = {name.partition(".model.")[2]: sum(count.values()) for name, count in counter.get_flop_counts().items()}
    found = []
    last = next(reversed(layers))
    rest_flops = int(counter.get_total_flops()) - sum(flops.get(name, 0) for name in owner)
    rest_saved = saved.num_bytes - sum(one.saved for one in seen.values())
    for name, modules in layers.items():
        split = [plan_name for plan_name in plan if plan_name == name or plan_name.startswith(f"{name}.")]
        own_flops = sum(flops.get(module, 0) for module in modules) + rest_flops * (name == last)
        # attention between the two matrices is divided with its heads
        divided = own_flops if split else 0
        parameters = [
            one for module in modules for one in model.get_submodule(module).parameters() if one.requires_grad
        ]
        found.append(
            LayerWork(
                name=name, shapes=tuple(tuple(one.shape) for one in parameters),
                element_bytes=parameters[0].element_size() if parameters else 4,
                output_bytes=seen[name].output / examples,
                saved_bytes=(seen[name].saved + rest_saved * (name == last)) / examples,
                flops=own_flops / examples, split_flops=divided / examples,
                split_parameters=sum(_num_split(model.get_submodule(one), plan[one]) for one in split),
                split_saved_bytes=seen[name].split_saved / examples, exchanged_bytes=seen[name].exchanged / examples,
            )
        )  # fmt: skip
    return tuple(found)


def layers_of_training(training: Training, batch: int) -> tuple[LayerWork, ...]:
    """Count the layers of a task's model at a local batch; empty if its code needs values or it has several phases."""
    if training.task.phases:
        return ()
    training.fix_batch(batch)
    training.begin_epoch()
    first = training.next_batches()[0][0]
    try:
        return count_layers(training.task, training.model, first.batch, first.num_examples)
    except Exception:  # of any kind: the code is the user's
        return ()


class _Seen:
    """What one forward pass showed of a layer, in bytes of a batch."""

    def __init__(self) -> None:
        self.output = self.saved = self.split_saved = self.exchanged = 0
        self.before = 0


class _Between:
    """What was kept when the last layer split by columns had ended."""

    def __init__(self) -> None:
        self.saved = 0


def _num_split(module: nn.Module, how: str) -> int:
    """Return how many parameters are divided; the bias of a layer split by rows is whole on each worker."""
    bias = 0 if getattr(module, "bias", None) is None or how == COLUMNS else module.bias.numel()  # type: ignore[operator]
    return sum(one.numel() for one in module.parameters()) - int(bias)


@contextmanager
def _watched(module: nn.Module, seen: _Seen, saved: SavedTensors) -> Iterator[None]:
    """Add up the bytes that a module keeps for the backward pass, and those that it returns, while the block runs."""

    def before(_: nn.Module, inputs: Any) -> None:
        seen.before = saved.num_bytes

    def after(_: nn.Module, inputs: Any, output: Any) -> None:
        seen.saved += saved.num_bytes - seen.before
        seen.output = num_bytes(output)

    with _hooked(module, before, after):
        yield


@contextmanager
def _split(module: nn.Module, how: str, seen: _Seen, saved: SavedTensors, between: _Between) -> Iterator[None]:
    """Add up what tensor parallelism divides and exchanges, while the block runs.

    Divided are the activations kept between a layer split by columns and the next one split by rows. Exchanged are the
    gradient of the first one's inputs and the results of the second.
    """

    def before(_: nn.Module, inputs: Any) -> None:
        if how == COLUMNS:
            seen.exchanged += num_bytes([one for one in tensors(inputs) if one.requires_grad])

    def after(_: nn.Module, inputs: Any, output: Any) -> None:
        if how == COLUMNS:
            between.saved = saved.num_bytes
        else:
            seen.split_saved += saved.num_bytes - between.saved
            seen.exchanged += num_bytes(output)

    with _hooked(module, before, after):
        yield


@contextmanager
def _hooked(module: nn.Module, before: Callable[..., None], after: Callable[..., None]) -> Iterator[None]:
    handles = [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
