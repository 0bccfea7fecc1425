"""Count the layers of a model for the parallel forms: parameters, activations and work of each, on the *meta* device.

The layers are those between which a pipeline cuts the model, or else those of
:mod:`rueda.train.parallel.layer_names`. Work outside any layer, such as the loss, counts for the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from rueda.data.nest import map_tensors, num_bytes, tensors
from rueda.measure.fused_attention import FusedAttention
from rueda.records.model_layers import LayerWork
from rueda.tasks import Task
from rueda.tasks.step import Losses
from rueda.train.counting import SavedTensors, on_meta, without_statistics, without_values
from rueda.train.parallel.layer_names import layers_of
from rueda.train.parallel.sharding import sharded_layers
from rueda.train.parallel.stages import Stage
from rueda.train.parallel.stages import layers_of as pipeline_layers
from rueda.train.parallel.tensor_plan import COLUMNS, split_plan
from rueda.train.step_module import StepModule
from rueda.train.training import Training
from rueda.world.gathering import gathering_alone


def count_layers(task: Task, model: nn.Module, batch: Any, examples: int) -> tuple[LayerWork, ...]:
    """Count a forward and a backward pass of a task layer by layer; no values are computed.

    The layers are those of a pipeline, if the model can be cut into some; otherwise :func:`layers_of`.

    Args:
        task: its step or its loss.
        model: the model.
        batch: a batch of the task.
        examples: the number of examples in it.
    """
    try:
        layers = cut_layers(task, model)
        return _counted(task, model, Stage(list(layers.values())), _in_stage(layers), batch, examples)
    except Exception:  # it cannot be cut, or the step uses more of the model than its layers
        return _counted(task, model, model, layers_of(model), batch, examples)


def cut_layers(task: Task, model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers between which a pipeline can cut a model, by name.

    A layer that is made for pipelines has the names of its parts: ``tokens + positions``.

    Raises:
        TaskError: nothing says how to cut it.
    """
    names = {id(module): name for name, module in model.named_modules()}
    found: dict[str, nn.Module] = {}
    for number, layer in enumerate(pipeline_layers(model, task.layers, task=task.name)):
        parts = [names[id(part)] for part in layer.children() if id(part) in names]
        name = names.get(id(layer)) or " + ".join(parts) or str(number)
        found[name if name not in found else f"{name} ({number})"] = layer
    return found


def _in_stage(layers: Iterable[str]) -> dict[str, list[str]]:
    """Return the layers by name, each with its place in a :class:`Stage` of all layers."""
    return {name: [f"layers.{number}"] for number, name in enumerate(layers)}


def _counted(
    task: Task, model: nn.Module, computed: nn.Module, layers: dict[str, list[str]], batch: Any, examples: int
) -> tuple[LayerWork, ...]:
    """Count the layers of ``computed``, which computes what the model does and has its parameters."""
    from torch.utils.flop_counter import FlopCounterMode  # only here: most trainings do not need it

    seen = {name: _Seen() for name in layers}
    owner = {module: layer for layer, modules in layers.items() for module in modules}
    modules = {name: [computed.get_submodule(module) for module in of] for name, of in layers.items()}
    plan = _planned(split_plan(model, task.tensor_plan), model, modules)
    with ExitStack() as stack:
        stack.enter_context(without_statistics(model))
        stack.enter_context(gathering_alone())
        saved = SavedTensors(stack.enter_context(without_values(computed)))
        step, given = StepModule(task, computed), map_tensors(on_meta, batch)
        with FlopCounterMode(display=False) as counter:
            step(given).total().backward()
        between = _Between()
        for name, of in modules.items():
            for module in of:
                stack.enter_context(_watched(module, seen[name], saved))
            for split, how in plan[name]:
                stack.enter_context(_split(split, how, seen[name], saved, between))
        with saved.hooks(), FusedAttention():
            result: Losses = step(given)
            total = result.total()
        kept = saved.num_bytes
        del result, total
    flops = {name.partition(".model.")[2]: sum(count.values()) for name, count in counter.get_flop_counts().items()}
    found: list[LayerWork] = []
    last = next(reversed(layers))
    rest_flops = int(counter.get_total_flops()) - sum(flops.get(name, 0) for name in owner)
    rest_saved = kept - sum(one.saved for one in seen.values())
    had: dict[int, str] = {}  # by the id of a parameter, the first layer that has it
    in_layers = {id(one) for layer in sharded_layers(model, task.layers) for one in layer.parameters()}
    for name in layers:
        own_flops = sum(flops.get(module, 0) for module in layers[name]) + rest_flops * (name == last)
        trained = [one for module in modules[name] for one in module.parameters() if one.requires_grad]
        own, tied = ([one for one in trained if (id(one) in had) == is_tied] for is_tied in (False, True))
        had |= {id(one): name for one in own}
        found.append(
            LayerWork(
                name=name, shapes=tuple(tuple(one.shape) for one in own),
                gathered_once=tuple(tuple(one.shape) for one in own if id(one) not in in_layers),
                tied_to=had[id(tied[0])] if tied else "", tied_parameters=sum(one.numel() for one in tied),
                element_bytes=trained[0].element_size() if trained else 4,
                output_bytes=seen[name].output / examples, saved_input_bytes=seen[name].saved_again / examples,
                saved_bytes=(seen[name].saved + rest_saved * (name == last)) / examples,
                # attention between the two matrices is divided with its heads
                flops=own_flops / examples, split_flops=own_flops / examples if plan[name] else 0.0,
                split_parameters=sum(_num_split(module, how) for module, how in plan[name]),
                split_saved_bytes=seen[name].split_saved / examples, exchanged_bytes=seen[name].exchanged / examples,
            )
        )  # fmt: skip
    return tuple(found)


def _planned(
    plan: Mapping[str, str], model: nn.Module, modules: Mapping[str, list[nn.Module]]
) -> dict[str, list[tuple[nn.Module, str]]]:
    """Return the split modules of each layer, and how each is split."""
    how = {id(model.get_submodule(name)): split for name, split in plan.items()}
    return {
        layer: [(part, how[id(part)]) for one in of for part in one.modules() if id(part) in how]
        for layer, of in modules.items()
    }


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
        self.output = self.saved = self.saved_again = self.split_saved = self.exchanged = 0
        self.before = 0
        self.inputs: list[tuple[Tensor, int]] = []


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
        seen.inputs = [(one, saved.times_kept(one)) for one in tensors(inputs)]

    def after(_: nn.Module, inputs: Any, output: Any) -> None:
        seen.saved += saved.num_bytes - seen.before
        seen.saved_again += num_bytes([one for one, times in seen.inputs if 0 < times < saved.times_kept(one)])
        seen.inputs = []
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
