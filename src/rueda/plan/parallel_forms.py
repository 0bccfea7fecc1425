"""Memory of a worker and bytes of a step in each parallel form, from the model's layers alone.

N workers are a mesh of d replicas x s shards x p pipeline stages x t tensor slices. A model has parameters of P bytes,
gradients of as many, an optimizer state of O, and keeps A bytes of activations for each example; B is the global batch.

=========  =================================  ======================================================================
form       memory of a worker                 bytes of a step
=========  =================================  ======================================================================
data       2 P + O + A B / d                  gradients: all-reduce of P, 2 (d - 1) / d P sent
sharded    (2 P + O) / s + 2 G + A B / s,     parameters: all-gather of P for the forward and, without what belongs to
           G: the largest layer, and what     no layer, again for the backward pass; gradients: reduce-scatter of P;
           belongs to none                    (s - 1) / s of these bytes sent
                                              (ZeRO 3: Rajbhandari et al. 2020, 1910.02054)
pipeline   a stage's 2 P + O + A of the       activations at the p - 1 cuts and as many gradients, of every micro-batch
           micro-batches in flight            (GPipe: Huang et al. 2019, 1811.06965)
tensor     split layers' 2 P + O and A over   activations: all-reduce of the output of each layer split by rows, and of
           t, others whole                    the gradient at the input of each layer split by columns (Megatron:
                                              Shoeybi et al. 2019, 1909.08053)
=========  =================================  ======================================================================

In flight are all m micro-batches of a pipeline with GPipe's schedule and at most p - i with that of 1F1B in stage i
(PipeDream: Narayanan et al. 2019). Each worker then waits for (p - 1) / (m + p - 1) of the step (Huang et al. 2019).

A combination multiplies: layers are cut into stages first, then their matrices into slices, then what remains is
sharded, and replicas of that all-reduce their gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from rueda.errors import ProfileError
from rueda.records.model_layers import LayerWork
from rueda.records.parallelism import Traffic, WorkerMemory, sent_bytes
from rueda.records.recipe.parallel_form import COMBINATIONS, SINGLE_FORMS, Mesh


def all_meshes(workers: int) -> list[Mesh]:
    """Return the forms of a number of workers: each alone, then two together.

    >>> [mesh.form for mesh in all_meshes(2)]
    ['data', 'sharded', 'pipeline', 'tensor']
    >>> [mesh.form for mesh in all_meshes(4)[4:]]
    ['data 2 x sharded 2', 'data 2 x pipeline 2', 'data 2 x tensor 2', 'sharded 2 x tensor 2']
    """
    if workers == 1:
        return [Mesh()]
    inner = [size for size in range(2, workers) if workers % size == 0]
    return [Mesh(**{kind: workers}) for kind in SINGLE_FORMS] + [
        Mesh(**{first: workers // size, second: size}) for size in inner for first, second in COMBINATIONS
    ]


class Schedule(NamedTuple):
    """How a pipeline works through a batch."""

    micro_batches: int = 1
    is_1f1b: bool = True
    """one forward, one backward; False: GPipe, which makes all forward passes first"""

    def in_flight(self, stages: int, stage: int) -> int:
        """Return of how many micro-batches a stage keeps activations at once.

        >>> [Schedule(8).in_flight(4, stage) for stage in range(4)], Schedule(8, is_1f1b=False).in_flight(4, 3)
        ([4, 3, 2, 1], 8)
        """
        return min(self.micro_batches, stages - stage) if self.is_1f1b else self.micro_batches

    def bubble(self, stages: int) -> float:
        """Return the share of the step in which a worker waits: (p - 1) / (m + p - 1).

        >>> Schedule(4).bubble(2), Schedule(1).bubble(4)
        (0.2, 0.75)
        """
        return (stages - 1) / (self.micro_batches + stages - 1)


def cut_into_stages(layers: Sequence[LayerWork], stages: int) -> list[Sequence[LayerWork]]:
    """Cut layers into contiguous stages, so that the stage with the most flops has as few as possible.

    Raises:
        ProfileError: there are fewer layers than stages.

    >>> sizes = [1, 1, 1, 3, 2]
    >>> layers = [LayerWork(name=str(n), shapes=(), output_bytes=0, saved_bytes=0, flops=n) for n in sizes]
    >>> [[layer.flops for layer in stage] for stage in cut_into_stages(layers, 2)]
    [[1, 1, 1], [3, 2]]
    """
    if stages > len(layers):
        do = "use fewer stages"
        raise ProfileError("pipeline stages", expected=f"at most {len(layers)}, one a layer", got=stages, do=do)
    sums = [0.0]
    for layer in layers:
        sums.append(sums[-1] + (layer.flops or 0.0))
    # least[n]: the smallest possible maximum for the first n layers, and where the last stage begins
    least = [(0.0 if number == 0 else inf, [0]) for number in range(len(layers) + 1)]
    for _ in range(stages):
        least = [
            min(
                ((max(least[cut][0], sums[end] - sums[cut]), [*least[cut][1], end]) for cut in range(end)),
                default=(inf, [0]),
                key=lambda found: found[0],
            )
            for end in range(len(layers) + 1)
        ]
    return [layers[first:end] for first, end in pairwise(least[-1][1])]


def worker_memory(
    stage: Sequence[LayerWork], mesh: Mesh, *, examples: float, state_per_parameter: float, in_flight: float = 1.0
) -> WorkerMemory:
    """Return the memory of a worker that holds a stage.

    Args:
        stage: its layers; all of them without a pipeline.
        mesh: the form.
        examples: examples of one forward pass: the micro-batch.
        state_per_parameter: bytes of the optimizer's state for each byte of a parameter: 1 with momentum, 2 with Adam.
        in_flight: micro-batches whose activations are kept.

    >>> layer = LayerWork(name="0", shapes=((100,),), output_bytes=40, saved_bytes=80, flops=0)
    >>> worker_memory([layer], Mesh(data=2), examples=10, state_per_parameter=2).total
    2400.0
    >>> sharded = worker_memory([layer], Mesh(sharded=2), examples=10, state_per_parameter=2)
    >>> sharded.state, sharded.gathered, sharded.activations
    (800.0, 800.0, 800.0)
    """
    whole = [gathered_bytes(layer, mesh) for layer in stage]
    parameters = (sum(whole) + copied_bytes(stage)) / mesh.sharded
    saved = sum(layer.saved_bytes - layer.split_saved_bytes * (1 - 1 / mesh.tensor) for layer in stage)
    saved += sum(layer.saved_input_bytes for layer in stage[:1])
    once = float(sum(layer.padded_once(mesh.sharded) for layer in stage))
    each = [size - layer.padded_once(mesh.sharded) for layer, size in zip(stage, whole, strict=True)]
    return WorkerMemory(
        parameters=parameters,
        gradients=parameters,
        optimizer=parameters * state_per_parameter,
        gathered=2.0 * (once + max(each, default=0.0)) if mesh.sharded > 1 else 0.0,
        activations=float(saved * examples * in_flight),
    )


def gathered_bytes(layer: LayerWork, mesh: Mesh) -> float:
    """Return the bytes of a layer's parameters on all shards together; without tensor slices, with the padding."""
    return float(layer.padded_bytes(mesh.sharded)) if mesh.tensor == 1 else layer_bytes(layer, mesh.tensor)


def copied_bytes(stage: Sequence[LayerWork]) -> float:
    """Return the bytes of the parameters that a stage shares with layers of other stages, and has copies of.

    >>> first = LayerWork(name="tokens", shapes=((10, 4),), output_bytes=0, saved_bytes=0, flops=0)
    >>> last = LayerWork(
    ...     name="output", shapes=(), tied_to="tokens", tied_parameters=40, output_bytes=0, saved_bytes=0, flops=0)
    >>> copied_bytes([first, last]), copied_bytes([last])
    (0.0, 160.0)
    """
    own = {layer.name for layer in stage}
    return float(sum(layer.element_bytes * layer.tied_parameters for layer in stage if layer.tied_to not in own))


def layer_bytes(layer: LayerWork, slices: int) -> float:
    """Return the bytes of a layer's parameters on one of some tensor slices."""
    split = layer.split_parameters
    return layer.element_bytes * (layer.parameters - split + split / slices)


class Exchange(NamedTuple):
    """One kind of communication of a worker in a step."""

    carries: str
    collective: str
    num_bytes: float
    """of the tensors"""
    size: int
    """ranks of the group"""
    calls: int
    """how many messages or collectives these bytes are"""

    @property
    def sent(self) -> float:
        """The bytes that a rank sends."""
        return sent_bytes(self.collective, self.num_bytes, self.size)


def exchanges_of(stage: Sequence[LayerWork], mesh: Mesh, *, examples: float) -> list[Exchange]:
    """Return what the workers of a stage exchange in a step among themselves and with their replicas.

    Sends between stages are :func:`cut_bytes`.

    Args:
        stage: the layers that these workers hold.
        mesh: the form.
        examples: examples that a worker computes in a step, with all micro-batches.

    >>> layer = LayerWork(name="0", shapes=((100,),), output_bytes=40, saved_bytes=80, flops=0)
    >>> [(one.carries, one.sent) for one in exchanges_of([layer], Mesh(data=4), examples=10)]
    [('gradients', 600.0)]
    >>> [(one.carries, one.sent) for one in exchanges_of([layer], Mesh(sharded=4), examples=10)]
    [('parameters', 600.0), ('gradients', 300.0)]
    """
    found = []
    if mesh.sharded > 1:
        whole = sum(gathered_bytes(layer, mesh) for layer in stage)
        once = sum(layer.padded_once(mesh.sharded) for layer in stage)
        units = sum(len(layer.shapes) > len(layer.gathered_once) for layer in stage)
        found.append(Exchange("parameters", "all-gather", 2 * whole - once, mesh.sharded, 2 * units + bool(once)))
        found.append(Exchange("gradients", "reduce-scatter", whole, mesh.sharded, units + bool(once)))
    if mesh.data > 1:
        whole = (sum(gathered_bytes(layer, mesh) for layer in stage) + copied_bytes(stage)) / mesh.sharded
        found.append(Exchange("gradients", "all-reduce", whole, mesh.data, 1))
    if mesh.tensor > 1:
        split = [layer for layer in stage if layer.exchanged_bytes]
        exchanged = examples * sum(layer.exchanged_bytes for layer in split)
        found.append(Exchange("activations", "all-reduce", exchanged, mesh.tensor, 4 * len(split)))
    return found


def cut_bytes(stages: Sequence[Sequence[LayerWork]], examples: float) -> list[float]:
    """Return for each cut of a pipeline the bytes of the activations, which its gradients need once more."""
    return [examples * stage[-1].output_bytes for stage in stages[:-1]]


def tied_exchanges(stages: Sequence[Sequence[LayerWork]]) -> list[Exchange]:
    """Return the all-reduce of the gradients of each parameter that several stages share."""
    place = {layer.name: number for number, stage in enumerate(stages) for layer in stage}
    owners: dict[str, set[int]] = {}
    num_bytes: dict[str, float] = {}
    for number, layer in ((number, layer) for number, stage in enumerate(stages) for layer in stage):
        if layer.tied_to and place[layer.tied_to] != number:
            owners.setdefault(layer.tied_to, {place[layer.tied_to]}).add(number)
            num_bytes[layer.tied_to] = float(layer.element_bytes * layer.tied_parameters)
    return [Exchange("gradients", "all-reduce", num_bytes[name], len(of), 1) for name, of in owners.items()]


def traffic_of(stages: Sequence[Sequence[LayerWork]], mesh: Mesh, *, examples: float) -> tuple[Traffic, ...]:
    """Return the bytes of each kind that a worker sends in a step, on average over the workers.

    >>> layers = [LayerWork(name=n, shapes=((100,),), output_bytes=40, saved_bytes=0, flops=1) for n in "ab"]
    >>> [one.num_bytes for one in traffic_of([layers[:1], layers[1:]], Mesh(pipeline=2), examples=10)]
    [400.0]
    """
    sums: dict[tuple[str, str], float] = {}
    for stage in stages:
        for one in exchanges_of(stage, mesh, examples=examples):
            key = one.carries, one.collective
            sums[key] = sums.get(key, 0.0) + one.sent / len(stages)
    if len(stages) > 1:
        sums["activations", "send"] = 2 * sum(cut_bytes(stages, examples)) / len(stages)
        if tied := sum(one.size * one.sent for one in tied_exchanges(stages)) / len(stages):
            sums["gradients", "all-reduce"] = sums.get(("gradients", "all-reduce"), 0.0) + tied
    return tuple(
        Traffic(carries=carries, collective=collective, num_bytes=value)
        for (carries, collective), value in sums.items()
    )
