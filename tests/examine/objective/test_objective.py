"""The objective: right values, gradients and products, and a model that comes back bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from rueda.errors import ExamineError
from rueda.examine.objective.objective import Objective
from rueda.tasks.models import small_cnn
from rueda.tasks.task import accuracy, cross_entropy


def images(count: int = 37, seed: int = 0) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(count, 1, 12, 12, generator=draws), torch.randint(10, (count,), generator=draws)


def network(batch_norm: bool = True, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return small_cnn(image_size=12, width=4, batch_norm=batch_norm, dropout=0.5)


def everything(model: nn.Module) -> dict[str, Any]:
    """All that a user could notice: bits, places in memory, order, modes, gradients."""
    state = model.state_dict(keep_vars=True)
    return {
        "bits": {name: value.detach().clone() for name, value in state.items()},
        "places": {name: (value.data_ptr(), value.stride(), id(value)) for name, value in state.items()},
        "modes": [module.training for module in model.modules()],
        "flags": [parameter.requires_grad for parameter in model.parameters()],
        "gradients": [parameter.grad for parameter in model.parameters()],
    }


def assert_untouched(model: nn.Module, before: dict[str, Any]) -> None:
    after = everything(model)
    assert all(torch.equal(after["bits"][name], value) for name, value in before["bits"].items())
    assert {name: after[name] for name in ("places", "modes", "flags")} == {
        name: before[name] for name in ("places", "modes", "flags")
    }
    assert all(one is other for one, other in zip(after["gradients"], before["gradients"], strict=True))


@pytest.mark.parametrize("chunk", [None, 1, 5, 37, 100])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_values_are_those_of_the_model_in_evaluation(chunk: int | None, batch_norm: bool) -> None:
    model, (inputs, targets) = network(batch_norm), images()
    found = Objective(model, cross_entropy, inputs, targets, correct=accuracy, chunk=chunk).values()
    model.eval()
    with torch.no_grad():
        outputs = model(inputs)
        assert found.loss == pytest.approx(float(F.cross_entropy(outputs.double(), targets)), rel=1e-6)
        assert found.error == pytest.approx(float((outputs.argmax(1) != targets).double().mean()), abs=1e-12)


@pytest.mark.parametrize("loss", [cross_entropy, nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="sum")])
def test_any_loss_and_any_loader(loss: Any) -> None:
    model, (inputs, targets) = network(), images()
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=8)
    wanted = Objective(model, cross_entropy, inputs, targets, chunk=8).value()
    assert Objective.from_loader(model, loss, loader, chunk=8).value() == pytest.approx(wanted, rel=1e-6)
    first = Objective.from_loader(model, loss, loader, chunk=8, limit=10)
    assert first.num_examples == 10
    assert first.value() == pytest.approx(Objective(model, cross_entropy, inputs[:10], targets[:10]).value(), rel=1e-6)


def test_several_inputs() -> None:
    model = nn.Bilinear(3, 4, 2).double()
    one, other, targets = torch.randn(9, 3).double(), torch.randn(9, 4).double(), torch.randint(2, (9,))
    loader = [((one[start : start + 4], other[start : start + 4]), targets[start : start + 4]) for start in (0, 4, 8)]
    found = Objective.from_loader(model, cross_entropy, loader, chunk=2).value()
    assert found == pytest.approx(F.cross_entropy(model(one, other), targets).item(), rel=1e-12)


def test_points() -> None:
    model, (inputs, targets) = network(False), images()
    objective = Objective(model, cross_entropy, inputs, targets)
    here = objective.value()
    vector = objective.flatten(objective.origin)
    with objective:
        objective.move([objective.origin], [-0.25])
        three_quarters = objective.value()
        objective.set(0.75 * vector)
        assert objective.value() == pytest.approx(three_quarters, rel=1e-6)
        objective.set(0.5 * vector)
        assert objective.value() != three_quarters
        objective.move([], [])
        assert objective.value() == here
    assert objective.value() == here
    with pytest.raises(ExamineError, match=r"expected shape \[\d+\], got \[3\]"):
        objective.split(torch.zeros(3))
    with objective, pytest.raises(ExamineError, match="tensors of shapes"):
        objective.set([torch.zeros(1)])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("end", ["well", "by an error", "by Ctrl-C"])
def test_the_model_comes_back_bit_for_bit(training: bool, end: str) -> None:
    model, (inputs, targets) = network(), images()
    model.train(training)
    model[0].weight.requires_grad_(False)
    model[0].train(False)  # a part that is frozen stays so
    F.cross_entropy(model(inputs), targets).backward()
    before = everything(model)
    objective = Objective(model, cross_entropy, inputs, targets)
    failure = {"by an error": ValueError, "by Ctrl-C": KeyboardInterrupt}.get(end)
    try:
        with objective:
            objective.move([[torch.ones_like(one) for one in objective.origin]], [0.1])
            objective.recalibrate(inputs)
            objective.values()
            if failure is not None:
                raise failure
    except (ValueError, KeyboardInterrupt):
        pass
    assert_untouched(model, before)


def test_no_graph_is_built_for_values() -> None:
    model, (inputs, targets) = network(), images()
    seen = []
    with Objective(model, lambda outputs, y: (seen.append(outputs.requires_grad), cross_entropy(outputs, y))[1],
                   inputs, targets) as objective:  # fmt: skip
        seen.clear()
        objective.values()
    assert seen and not any(seen)


def test_a_second_set_of_examples_moves_along() -> None:
    model, (inputs, targets) = network(False), images()
    train = Objective(model, cross_entropy, inputs, targets)
    test = train.with_examples(*images(11, seed=1))
    with train:
        train.move([train.origin], [1.0])
        moved = test.value()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 2
    assert moved == Objective(model, cross_entropy, *images(11, seed=1), chunk=test.chunk).value()
    with train, pytest.raises(RuntimeError, match="in use already"):
        Objective(model, cross_entropy, inputs, targets)


def test_shared_weights_and_a_view_that_wants_its_order() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(1, 2, 3)
            self.out = nn.Linear(200, 10)
            self.same = self.out

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            flat = x.view(len(x), -1)  # fails in channels-last order
            return self.out(flat) + self.same(flat)

    torch.manual_seed(0)
    model, (inputs, targets) = Tied(), images()
    before = everything(model)
    objective = Objective(model, cross_entropy, inputs, targets)
    wanted = F.cross_entropy(model(inputs).double(), targets).item()
    assert objective.value() == pytest.approx(wanted, rel=1e-6)
    assert objective.num_parameters == 20 + 2010
    assert_untouched(model, before)


def not_a_number(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        model[0].weight[1, 0, 0, 0] = torch.nan
    return model


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: Objective.from_loader(network(), cross_entropy, []), "the loader: expected at least one batch"),
        (lambda: Objective(network(), cross_entropy, *images(0)), "one length above 0, got '0 and 0'"),
        (lambda: Objective(network(), cross_entropy, images(3)[0], images(4)[1]), "got '3 and 4'"),
        (lambda: Objective(not_a_number(network()), cross_entropy, *images()), "0.weight: expected finite numbers"),
        (lambda: Objective(nn.Flatten(), cross_entropy, *images()), "the model: expected parameters to move"),
        (lambda: Objective(nn.Linear(5, 10), cross_entropy, *images()), "do not run on these examples"),
        (lambda: Objective(network(), lambda a, b: a, *images()), r"one value per example, shape \[2\], or their mean"),
        (lambda: Objective(network(), cross_entropy, *images(), chunk=0), "chunk: expected 1 or more examples, got 0"),
        (lambda: Objective.from_loader(network(), cross_entropy, [images()[0]]), r"expected \(inputs, targets\)"),
    ],
)
def test_bad_input_is_one_line(make: Any, line: str) -> None:
    with pytest.raises(ExamineError, match=line) as error:
        make()
    assert len(str(error.value).splitlines()) == 1
