"""The network in fewer passes is the network, bit for bit, or is not used."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rueda.examine.objective.fewer_passes import fewer_passes, pool
from rueda.examine.objective.objective import Objective
from rueda.tasks.models import resnet, small_cnn

X = torch.randn(4, 3, 13, 13, generator=torch.Generator().manual_seed(0)).contiguous(memory_format=torch.channels_last)


class Functional(nn.Module):
    """Calls functions instead of layers, with arguments given in every way."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.one(x)), 2)
        x = torch.relu(self.two(x))
        return F.max_pool2d(x.relu(), kernel_size=(2, 2), stride=1).flatten(1)


class ReadTwice(nn.Module):
    """What goes into ReLU, and what comes out of it, is read again: neither may be overwritten or skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        before = self.conv(x)
        after = F.relu(before)
        return F.max_pool2d(after, 2).sum() + after.sum() + before.min() + x.sum()


class Tracked(nn.Module):
    """Has a buffer of its own, which a traced copy would keep while the model moves on."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.register_buffer("shift", torch.ones(8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(self.conv(x) + self.shift), 2)


class Branching(nn.Module):
    """Decides by its data, which cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(self.conv(x)), 2) if x.sum() > 0 else self.conv(x)


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2))
    model[1].register_forward_hook(lambda module, given, found: found + 1)
    return model


REWRITTEN = {
    "layers": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2)),
    "functions": Functional,
    "the small CNN": lambda: small_cnn(in_channels=3, image_size=13),
    "batch norm": lambda: small_cnn(in_channels=3, image_size=13, batch_norm=True),
    "read twice": ReadTwice,
    "pools of 3, no ReLU": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.MaxPool2d(3)),
    "ReLU in place": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
    "ReLU before a linear layer": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(968, 5), nn.ReLU(), nn.Linear(5, 2)
    ),
    "residual": resnet,
}
LEFT = {
    "a buffer of its own": Tracked,
    "branches": Branching,
    "hooks": hooked,
    "no convolution": lambda: nn.Sequential(nn.Flatten(), nn.Linear(507, 4), nn.ReLU()),
    "pools that overlap": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.MaxPool2d(3, stride=2)),
    "pools at the edge": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.MaxPool2d(2, padding=1)),
    "pools that round up": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.MaxPool2d(2, ceil_mode=True)),
    "pools with gaps": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.MaxPool2d(2, dilation=2)),
}


def prepared(build: object) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = build().eval()  # type: ignore[operator]
    return model.to(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", REWRITTEN)
def test_the_same_bits_wherever_the_model_moves(name: str) -> None:
    model = prepared(REWRITTEN[name])
    faster = fewer_passes(model, X[:2])
    assert faster is not model
    given = X.clone(memory_format=torch.preserve_format)
    with torch.inference_mode():
        for _ in range(2):
            assert torch.equal(faster(given), model(given))
            for parameter in model.parameters():
                parameter.data = parameter.data * 1.5
            for buffer in model.buffers():
                buffer.add_(1)
    assert torch.equal(given, X)  # what was given is not overwritten


@pytest.mark.parametrize("name", LEFT)
def test_what_cannot_be_rewritten_runs_as_it_is(name: str) -> None:
    model = prepared(LEFT[name])
    assert fewer_passes(model, X[:2]) is model


@pytest.mark.parametrize("kernel", [1, 2, 3, 5, 13])
@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
def test_pooling_is_torchs_also_with_nan_and_infinity(kernel: int, order: torch.memory_format) -> None:
    x = X.clone().contiguous(memory_format=order)
    x[0, 0, 3, 3], x[1, 1, 4, 5], x[2, 2, 0, 0] = float("nan"), float("inf"), -float("inf")
    assert torch.equal(pool(x, kernel).nan_to_num(7e7), F.max_pool2d(x, kernel).nan_to_num(7e7))


def test_the_objective_agrees_with_the_model_at_a_moved_point() -> None:
    model = prepared(REWRITTEN["batch norm"])
    targets = torch.tensor([1, 2, 3, 4])
    with Objective(model, F.cross_entropy, X, targets) as objective:
        objective.move([[torch.ones_like(one) for one in objective.origin]], [0.1])
        objective.set_buffers({"1.running_mean": torch.full((16,), 0.3)})
        with torch.inference_mode():
            expected = float(F.cross_entropy(model(X), targets))
        assert objective.value() == pytest.approx(expected, rel=1e-6)
