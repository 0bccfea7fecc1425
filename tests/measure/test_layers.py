"""The layers of a model against counts by hand."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from rueda.data import Arrays
from rueda.measure.layers import count_layers
from rueda.tasks import Task
from rueda.tasks.models.transformer import decoder
from rueda.train.parallel.layer_names import layers_of
from rueda.train.parallel.tensor_plan import split_plan

BATCH = 6


def classifier(model: nn.Module) -> Task:
    data = partial(Arrays, torch.ones(8, 4), torch.zeros(8).long())
    return Task(name="t", model=lambda: model, train=data, test=data)


def test_a_perceptron() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    first, function, second = count_layers(
        classifier(model), model, (torch.ones(BATCH, 4), torch.zeros(BATCH).long()), BATCH
    )
    assert (first.name, first.shapes, first.parameters) == ("0", ((8, 4), (8,)), 40)
    assert (first.output_bytes, function.output_bytes, second.output_bytes) == (4 * 8, 4 * 8, 4 * 3)
    assert first.flops == 2 * 2 * 4 * 8  # the gradient of the inputs is not computed
    assert second.flops == 3 * 2 * 8 * 3
    assert (first.saved_bytes, function.saved_bytes) == (4 * 4, 4 * 8)  # the inputs, and the result of relu
    assert (function.saved_input_bytes, second.saved_input_bytes) == (0, 4 * 8)  # which the next layer keeps as well
    assert (first.split_parameters, second.split_parameters) == (40, 24)  # all but the bias of the second
    assert second.split_saved_bytes == 4 * 8  # the result of relu


def test_a_transformer_is_split_as_megatron_does() -> None:
    width, length, vocabulary = 16, 8, 32
    model = decoder(vocabulary=vocabulary, width=width, num_layers=2, heads=2, context=length)

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).mean((1, 2))  # type: ignore[no-any-return]

    data = partial(Arrays, torch.zeros(8, length).long())
    task = Task(name="t", model=lambda: model, train=data, test=data, step=step)
    found = count_layers(task, model, torch.zeros(BATCH, length).long(), BATCH)
    assert list(layers_of(model)) == ["tokens", "positions", "blocks.0", "blocks.1", "norm"]
    assert [layer.name for layer in found] == ["tokens + positions", "blocks.0", "blocks.1", "norm + tokens"]
    assert sum(layer.parameters for layer in found) == sum(one.numel() for one in model.parameters())
    assert (found[3].tied_to, found[3].tied_parameters) == ("tokens + positions", vocabulary * width)
    block, stream = found[1], 4 * length * width  # bytes of the residual path of an example
    assert block.output_bytes == stream
    assert block.exchanged_bytes == 4 * stream  # Megatron: two all-reduces forward, two backward
    matrices = width * 3 * width + width * width + 2 * width * 4 * width
    assert (
        block.split_parameters == matrices + 3 * width + 4 * width
    )  # the biases of the layers split by rows are whole
    # kept between the two matrices of the perceptron: before and after gelu
    assert 0 < 8 * stream <= block.split_saved_bytes < block.saved_bytes
    assert found[3].flops == 3 * 2 * length * width * vocabulary  # the output layer, with the embedding's weights
    assert len(split_plan(model)) == 8
