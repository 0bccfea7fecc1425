"""Hessian products, eigenvalues, trace and density of models against closed forms, and the model left as it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from examine.quadratics import DOUBLE, quadratic, rotated, spectrum_like_a_network
from harness import workers
from rueda.errors import ExamineError, RunError
from rueda.examine.curvature.hessian import hessian
from rueda.examine.curvature.product import CurvatureProduct
from rueda.examine.objective.objective import Objective
from rueda.records.curvature import Curvature, ModelCurvature


def network(batch_norm: bool = False, dtype: torch.dtype = DOUBLE) -> nn.Module:
    torch.manual_seed(0)
    norm = [nn.BatchNorm2d(3)] if batch_norm else []
    layers = [nn.Conv2d(1, 3, 3), *norm, nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, 3)]
    model = nn.Sequential(*layers).to(dtype)
    if batch_norm:
        with torch.no_grad():
            model[1].running_mean += 0.3
            model[1].running_var *= 2.0
    return model


def examples(dtype: torch.dtype = DOUBLE, count: int = 20) -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(1)
    return torch.randn(count, 1, 6, 6, generator=draws, dtype=dtype), torch.randint(0, 3, (count,), generator=draws)


def per_example(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def dense(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The whole Hessian by torch's own second derivatives, in evaluation mode."""
    names = [name for name, _ in model.named_parameters()]
    shapes = [one.shape for one in model.parameters()]
    sizes = [one.numel() for one in model.parameters()]
    start = torch.cat([one.detach().flatten() for one in model.parameters()])
    was = model.training
    model.eval()

    def f(flat: torch.Tensor) -> torch.Tensor:
        parts = [part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]
        outputs = torch.func.functional_call(model, dict(zip(names, parts, strict=True)), (x,))
        return F.cross_entropy(outputs, y)

    found = torch.autograd.functional.hessian(f, start)
    model.train(was)
    return found


@pytest.mark.parametrize("memory", [2 << 30, 0], ids=["graphs kept", "graphs rebuilt"])
@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("chunk", [7, None])
def test_products_are_those_of_the_dense_hessian(memory: int, batch_norm: bool, chunk: int | None) -> None:
    model, (x, y) = network(batch_norm), examples()
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    exact = dense(model, x, y)
    objective = Objective(model, per_example, x, y)
    vector = torch.randn(len(exact), generator=torch.Generator().manual_seed(2), dtype=DOUBLE)
    with CurvatureProduct(objective, chunk=chunk, memory_bytes=memory) as product:
        for _ in range(2):  # a kept graph serves again
            torch.testing.assert_close(product(vector), exact @ vector, rtol=1e-10, atol=1e-12)
        assert product.loss == pytest.approx(float(F.cross_entropy(model(x), y).detach()), rel=1e-12)
        assert product.num_products == 2
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(one.grad is None for one in model.parameters())


@pytest.mark.parametrize("bias", [False, True])
def test_products_of_a_network_of_relus_and_poolings(bias: bool) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1, bias=bias), nn.ReLU(), nn.Conv2d(3, 4, 3, padding=1, bias=bias), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(4, 3, 2, bias=bias), nn.ReLU(inplace=True), nn.MaxPool2d(2, 1), nn.Flatten(),
        nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3),
    ).to(DOUBLE)  # fmt: skip
    x, y = examples()
    exact = dense(model, x, y)
    vector = torch.randn(len(exact), generator=torch.Generator().manual_seed(2), dtype=DOUBLE)
    with CurvatureProduct(Objective(model, per_example, x, y), chunk=8) as product:
        torch.testing.assert_close(product(vector), exact @ vector, rtol=1e-10, atol=1e-12)


def test_products_do_not_load_symbolic_algebra() -> None:
    # torch.autograd.grad with grad_outputs does, which takes longer than a small network's eigenvalue.
    script = (
        "import sys, torch; from torch import nn; from rueda.examine import Objective, hessian\n"
        "objective = Objective(nn.Linear(3, 2), nn.CrossEntropyLoss(), torch.eye(3), torch.tensor([0, 1, 1]))\n"
        "hessian(objective)\n"
        "assert 'sympy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_kept_and_rebuilt_graphs_give_the_same_bits() -> None:
    model, (x, y) = network(dtype=torch.float32), examples(torch.float32)
    vector = torch.ones(sum(one.numel() for one in model.parameters()))
    found = []
    for memory in (2 << 30, 40_000, 0):
        with CurvatureProduct(Objective(model, per_example, x, y), chunk=4, memory_bytes=memory) as product:
            found.append(product(vector))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("name", ["diagonal", "rotated"])
def test_a_quadratic_is_known_whole(name: str) -> None:
    values = spectrum_like_a_network()
    matrix = torch.diag(values) if name == "diagonal" else rotated(values)[0]
    found = hessian(quadratic(matrix, offset=1.5), num_eigenvalues=4, tolerance=1e-7, num_steps=12, num_probes=15)
    assert found.converged
    np.testing.assert_allclose([one.value for one in found.eigenvalues], [9, 5, 4.9, 2], atol=1e-6)
    start = torch.linspace(-1, 2, 60, dtype=DOUBLE)
    assert found.loss == pytest.approx(1.5 + 0.5 * float(start @ matrix @ start))
    assert found.gradient_norm == pytest.approx(float((matrix @ start).norm()))
    assert found.trace is not None and found.trace_error is not None and found.density is not None
    trace, square = float(values.sum()), float((values**2).mean())
    assert abs(found.trace - trace) <= 4 * found.trace_error + 1e-6
    tolerance = 1e-6 if name == "diagonal" else 0.0  # signs see a diagonal exactly
    density = found.density
    assert abs(density.mean - trace / 60) <= 4 * density.mean_error + tolerance
    assert abs(density.mean_square - square) <= 4 * density.mean_square_error + tolerance
    assert found.lowest.value == pytest.approx(-0.2, abs=found.lowest.residual + 1e-9)
    assert (found.examples, found.parameters) == (11, 60)


def test_a_network_against_the_dense_hessian() -> None:
    model, (x, y) = network(batch_norm=True), examples()
    exact = torch.linalg.eigvalsh(dense(model, x, y)).flip(0)
    found = hessian(Objective(model, per_example, x, y), num_eigenvalues=3, trace_tolerance=0.001, num_steps=20)
    assert found.batch_norm == "running statistics"
    for one, true in zip(found.eigenvalues, exact, strict=False):
        assert abs(one.value - float(true)) <= min(1e-3 * float(true), one.error * (1 + 1e-6) + 1e-12)
    assert found.trace is not None and found.trace_error is not None
    assert abs(found.trace - float(exact.sum())) <= 4 * found.trace_error + 1e-9


def test_it_says_when_it_has_not_converged() -> None:
    matrix, _ = rotated(torch.linspace(0, 1, 200, dtype=DOUBLE))
    found = hessian(quadratic(matrix), most_products=6, tolerance=1e-6, density=False)
    assert not found.converged
    assert found.trace_converged is False
    assert abs(found.largest - 1) <= found.eigenvalues[0].residual + 1e-9 or found.largest < 1


def test_at_a_minimum_eigenvalues_are_found_all_the_same() -> None:
    zero = torch.zeros(60, dtype=DOUBLE)
    found = hessian(quadratic(rotated(spectrum_like_a_network())[0], start=zero), trace=False, density=False)
    assert found.gradient_norm == 0
    assert found.largest == pytest.approx(9, rel=1e-3)


def test_a_linear_function_has_no_curvature() -> None:
    model = nn.Linear(3, 1)
    found = hessian(Objective(model, lambda outputs, _: outputs.squeeze(1), torch.ones(4, 3), torch.ones(4)))
    assert found.largest == 0 and found.trace == 0 and found.converged


def test_progress_is_told_and_seeds_repeat() -> None:
    told: list[tuple[str, int, int]] = []
    objective = quadratic(rotated(spectrum_like_a_network())[0])
    one = hessian(objective, progress=lambda *what: told.append(what), num_steps=5, num_probes=2)
    assert {what for what, _, _ in told} == {"eigenvalues", "trace", "density"}
    assert all(done <= most for _, done, most in told)
    two = hessian(objective, num_steps=5, num_probes=2)
    assert (one.eigenvalues, one.trace, one.density) == (two.eigenvalues, two.trace, two.density)
    assert hessian(objective, num_steps=5, num_probes=2, seed=1).density != one.density


def test_what_is_not_finite_is_one_line() -> None:
    x, y = examples()
    with pytest.raises(ExamineError, match="NaN"):
        model = network()
        model[0].weight.data[0] = float("nan")
        hessian(Objective(model, per_example, x, y))
    x[0] = float("inf")
    with pytest.raises(ExamineError, match="the loss and its gradient: expected finite") as caught:
        hessian(Objective(network(), per_example, x, y))
    assert "\n" not in str(caught.value)
    with pytest.raises(ExamineError, match="eigenvalues: expected 1 or more"):
        hessian(quadratic(torch.eye(3, dtype=DOUBLE)), num_eigenvalues=0)


def test_an_empty_loader_is_one_line() -> None:
    with pytest.raises(ExamineError, match="loader"):
        hessian(Objective.from_loader(network(), per_example, []))


@workers(3)
def test_any_number_of_workers_gives_the_same_bits() -> None:
    from rueda.world import World

    model, (x, y) = network(dtype=torch.float32), examples(torch.float32, 50)
    model[1] = nn.ReLU()

    def found(world: World | None) -> torch.Tensor:
        with CurvatureProduct(Objective(model, per_example, x, y), chunk=4, world=world) as product:
            return torch.cat([product.gradient, product(torch.ones(product.size))])

    assert torch.equal(found(None), found(World()))


def test_the_record_comes_back(tmp_path: Path) -> None:
    objective = quadratic(rotated(spectrum_like_a_network())[0])
    found = hessian(objective, num_steps=5, num_probes=2)
    record = Curvature(task="clouds", members=(ModelCurvature(name="one-worker", seed=0, hessian=found),))
    record.save(tmp_path / "curvature.json")
    assert Curvature.load(tmp_path) == record


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "expected JSON"),
        ('{"kind": "landscape"}', r"expected a curvature \(kind 'curvature'\), got 'landscape'"),
        ('{"kind": "curvature", "format": 9}', "expected format 1"),
        ('{"kind": "curvature", "format": 1, "task": "x", "members": []}', "at least one model"),
        ('{"kind": "curvature", "format": 1, "task": "x", "members": [{"name": 3}]}', "expected str"),
    ],
)
def test_a_broken_record_is_one_line(text: str, told: str) -> None:
    with pytest.raises(RunError, match=told) as caught:
        Curvature.from_json(text)
    assert "\n" not in str(caught.value)
