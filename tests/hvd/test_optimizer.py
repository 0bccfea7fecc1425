"""DistributedOptimizer: N workers on their parts of a batch against one worker on the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import rueda.hvd.torch as hvd
from harness import workers
from rueda.hvd.core import lifecycle
from rueda.hvd.torch.compression import Compressor

FACTORIES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}
STEP_WARNING = r"^optimizer.step\(\) called without optimizer.skip_synchronize\(\) context after"
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {}, "groups": {"groups": 2}, "more groups": {"groups": 3}, "positions": {"unnamed": True},
    "predivide": {"gradient_predivide_factor": 2.0},
}  # fmt: skip


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 900), nn.Tanh(), nn.Linear(900, 3)).double()


def make_batches(number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    size = 6 * hvd.size()
    return [
        (torch.randn(size, 4, generator=generator, dtype=torch.float64), torch.randint(3, (size,), generator=generator))
        for _ in range(number)
    ]


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def wrap(optimizer: torch.optim.Optimizer, model: nn.Module, **options: Any) -> Any:
    named = None if options.pop("unnamed", False) else model.named_parameters()
    return hvd.DistributedOptimizer(optimizer, named, **options)


def check_equal_to_one_worker() -> None:
    hvd.init()
    n, r = hvd.size(), hvd.rank()
    batches = make_batches(5)
    for factory in FACTORIES.values():
        alone = make_model()
        optimizer = factory(alone.parameters())
        for x, y in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(alone(x), y).backward()
            optimizer.step()
        for options in VARIANTS.values():
            model = make_model()
            many = wrap(factory(model.parameters()), model, **options)
            assert isinstance(many, type(optimizer)) and type(many).__name__ == type(optimizer).__name__
            for x, y in batches:
                many.zero_grad(set_to_none=r == 0)
                nn.functional.cross_entropy(model(x[r::n]), y[r::n]).backward()
                many.step()
            torch.testing.assert_close(weights(model), weights(alone), rtol=1e-9, atol=1e-12)
            assert many.state_dict()["param_groups"][0]["lr"] == optimizer.param_groups[0]["lr"]


def check_ways_to_step() -> None:
    hvd.init()
    n, r = hvd.size(), hvd.rank()
    batches = make_batches(6)

    def train(distributed: bool, step: Callable[[Any, nn.Module, Any, Any, int], None], **options: Any) -> torch.Tensor:
        model = make_model()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        if distributed:
            optimizer = wrap(optimizer, model, **options)
        for number, (x, y) in enumerate(batches):
            part = (x[r::n], y[r::n]) if distributed else (x, y)
            step(optimizer, model, *part, number)
        return weights(model)

    def loss(model: nn.Module, x: Any, y: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model(x), y)

    def accumulating(optimizer: Any, model: nn.Module, x: Any, y: Any, number: int) -> None:
        loss(model, x, y).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()

    def clipping(optimizer: Any, model: nn.Module, x: Any, y: Any, number: int) -> None:
        optimizer.zero_grad()
        loss(model, x, y).backward()
        if hasattr(optimizer, "synchronize"):
            optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        if hasattr(optimizer, "skip_synchronize"):
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()

    def closing(optimizer: Any, model: nn.Module, x: Any, y: Any, number: int) -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            value = loss(model, x, y)
            value.backward()
            return value

        optimizer.step(closure)

    for step, options in ((accumulating, {"backward_passes_per_step": 2}), (clipping, {}), (closing, {})):
        one, many = train(False, step), train(True, step, **options)
        torch.testing.assert_close(many, one, rtol=1e-9, atol=1e-12)
    for compression, tolerance in ((hvd.Compression.fp16, 1e-4), (hvd.Compression.bf16, 1e-3)):
        torch.testing.assert_close(
            train(True, clipping, compression=compression), train(False, clipping), rtol=0, atol=tolerance
        )

    complex_weight = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    optimizer: Any = torch.optim.SGD([complex_weight], lr=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, compression=hvd.Compression.fp16)
    for _ in range(3):  # also with buckets: only floating-point gradients are compressed
        optimizer.zero_grad()
        (complex_weight.real.sum() + complex_weight.imag.sum()).backward()
        optimizer.step()
    assert torch.equal(complex_weight.detach(), torch.full((2,), -3.0 - 3.0j))

    class Nothing(Compressor):
        """A compression of the user's own, which must be applied in every step: it sends zeros."""

        @classmethod
        def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
            return torch.zeros_like(tensor), None

    assert torch.equal(train(True, clipping, compression=Nothing), weights(make_model()))

    results = []
    for distributed in (False, True):
        model = make_model()
        optimizer = torch.optim.LBFGS(model[-1].parameters(), max_iter=4, line_search_fn="strong_wolfe")
        if distributed:
            optimizer = wrap(optimizer, model[-1])
        x, y = batches[0]
        closing(optimizer, model, *((x[r::n], y[r::n]) if distributed else (x, y)), 0)
        results.append(weights(model))
    torch.testing.assert_close(results[1], results[0], rtol=1e-6, atol=1e-8)


class Branches(nn.Module):
    """Uses some of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.zeros(2)) for _ in range(4)])

    def forward(self, used: list[int]) -> torch.Tensor:
        return torch.stack([self.parts[i].sum() for i in used]).sum()


def check_changing_parameters() -> None:
    """Each step other parameters, on each rank others; what nobody uses gets a gradient of zeros, as in Horovod."""
    hvd.init()
    n, r = hvd.size(), hvd.rank()
    model = Branches()
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=1.0), model)
    use = [[0, 1], [0, 1], [1, 2], [0] if r else [1], [2] if r else [0, 1, 2], [0, 1, 2]]
    expected = torch.zeros(4)
    for step, used in enumerate(use):
        optimizer.zero_grad()
        model(used).backward()
        optimizer.step()
        everybody = hvd.allgather(torch.tensor([[float(i in used) for i in range(4)]]))
        expected -= everybody.sum(0) / n
        for i, part in enumerate(model.parts):
            assert torch.equal(part.grad, torch.full((2,), everybody[:, i].mean().item())), (step, i)
            torch.testing.assert_close(part.detach(), torch.full((2,), expected[i].item()))
    decayed = wrap(torch.optim.SGD(model.parameters(), lr=1.0, weight_decay=0.5), model)
    nn.init.ones_(model.parts[3])
    decayed.zero_grad()
    model([0]).backward()
    decayed.step()
    assert torch.equal(model.parts[3].detach(), torch.full((2,), 0.5))


def check_sparse() -> None:
    hvd.init()
    n, r = hvd.size(), hvd.rank()
    for dense in (False, True):
        table = nn.Embedding(6, 2, sparse=True)
        nn.init.zeros_(table.weight)
        linear = nn.Linear(2, 1, bias=False)
        nn.init.ones_(linear.weight)
        model = nn.Sequential(table, linear)
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=1.0), model, sparse_as_dense=dense)
        for _ in range(3):
            optimizer.zero_grad()
            table(torch.tensor([r, 5])).sum().backward()  # the linear layer is not used
            optimizer.step()
        assert table.weight.grad.is_sparse  # with sparse_as_dense it was dense only while it was sent
        expected = torch.zeros(6, 2)
        expected[:n] = -3.0 / n
        expected[5] = -3.0
        torch.testing.assert_close(table.weight.detach(), expected)


def check_sparse_adam() -> None:
    """SparseAdam refuses dense gradients; the reduced gradient of sparse_as_dense is sparse again, as in Horovod."""
    hvd.init()
    n, r = hvd.size(), hvd.rank()
    tables = []
    for part in (torch.arange(n), torch.tensor([r])):  # one worker with all rows; every worker with its own
        table = nn.Embedding(n + 2, 3, sparse=True)
        nn.init.ones_(table.weight)
        optimizer: Any = torch.optim.SparseAdam(table.parameters(), lr=0.1)
        if len(part) == 1:
            optimizer = hvd.DistributedOptimizer(optimizer, table.named_parameters(), sparse_as_dense=True)
            hvd.broadcast_optimizer_state(optimizer, 0)
            assert table.weight.grad.is_sparse and not table.weight.grad.to_dense().any()
        for _ in range(3):  # by name, then in buckets
            optimizer.zero_grad()
            (table(part).sum() * len(part) / n).backward()
            optimizer.step()
            assert table.weight.grad.is_sparse
        tables.append(table.weight.detach())
    torch.testing.assert_close(tables[1], tables[0])


def check_attributes() -> None:
    """What public scripts read from Horovod's optimizers."""
    hvd.init()
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    groups: Any = [{"params": part.parameters()} for part in model]
    unnamed = hvd.DistributedOptimizer(torch.optim.SGD(groups, lr=1.0))
    assert list(unnamed._parameter_names.values()) == [f"allreduce.noname.{i}.{j}" for i in (0, 1) for j in (0, 1)]
    named = wrap(torch.optim.SGD(model.parameters(), lr=1.0), model, gradient_predivide_factor=2.0)
    assert named._parameter_names == {parameter: name for name, parameter in model.named_parameters()}
    assert (named.op, named.gradient_predivide_factor, named.sparse_as_dense) == (hvd.Average, 2.0, False)
    assert named.process_set is hvd.global_process_set and named._compression is hvd.Compression.none
    assert named.backward_passes_per_step == 1
    only = hvd.add_process_set([0])
    outside = wrap(torch.optim.SGD(model.parameters(), lr=1.0), model, process_set=only)
    model(torch.ones(1, 1)).sum().backward()
    outside.step()  # a rank outside the set, or alone in it, trains by itself
    hvd.remove_process_set(only)


def check_nothing_is_negotiated() -> None:
    hvd.init()
    model = make_model()
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    engine = lifecycle.engine()
    x, y = make_batches(1)[0]
    asked: list[Any] = []
    submit = engine.submit
    engine.submit = lambda entry, **more: (asked.append(entry), submit(entry, **more))[1]  # type: ignore[assignment, method-assign]
    try:
        for step in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            assert bool(asked) == (step == 0)
            asked.clear()
    finally:
        engine.submit = submit  # type: ignore[method-assign]
    # The engine ends and another begins: the optimizer goes on.
    hvd.shutdown()
    hvd.init()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    told = hvd.allgather(weights(model).view(1, -1))
    assert torch.equal(told, told[:1].expand_as(told))


def check_mistakes() -> None:
    hvd.init()
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    sgd = torch.optim.SGD([a, b], lr=1.0)
    for named, options, text in (
        ([("x", a), ("x", b)], {}, "expected unique names, got 'x'"),
        ([("x", a)], {}, "expected a name for every parameter"),
        ([a, b], {}, "expected pairs"),
        (None, {"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor"),
        (None, {"backward_passes_per_step": 0}, "backward_passes_per_step"),
        (None, {"groups": [[a], [a, b]]}, "at most one group"),
    ):
        with pytest.raises(ValueError, match=text):
            hvd.DistributedOptimizer(sgd, named, **options)
    optimizer = hvd.DistributedOptimizer(sgd, [("a", a), ("b", b)])
    (a + b).backward()
    with pytest.raises(AssertionError, match=r"optimizer.zero_grad\(\) was called after loss.backward\(\)"):
        optimizer.zero_grad()
    with pytest.raises(AssertionError, match="1 backward passes before step"):
        (a + b).backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match=STEP_WARNING):
        optimizer.step()
    with pytest.warns(DeprecationWarning, match="^Parameter `num_groups` has been replaced by `groups`"):
        hvd.DistributedOptimizer(sgd, [("a", a), ("b", b)], num_groups=2)
    optimizer = hvd.DistributedOptimizer(sgd, [("a", a), ("b", b)])
    optimizer.set_backward_passes_per_step(2)
    optimizer.zero_grad()
    (a + b).backward()
    (a + b).backward()
    optimizer.step()
    assert a.grad is not None and a.grad.item() == 2.0
    again = hvd.DistributedOptimizer(torch.optim.SGD([a, b], lr=1.0), [("a", a), ("b", b)])  # replaces the first
    again.zero_grad()
    (a + b).backward()
    again.step()


def check_adasum() -> None:
    """Each rank's own update, combined: here the updates are orthogonal, so they add up."""
    hvd.init()
    n, r = hvd.size(), hvd.rank()
    weight = nn.Parameter(torch.zeros(n))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.5), [("w", weight)], op=hvd.Adasum)
    for _ in range(2):
        optimizer.zero_grad()
        weight[r].backward()
        optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((n,), -1.0))
    with pytest.raises(AssertionError, match="Skipping synchronization is not supported when using Adasum"):
        optimizer.skip_synchronize()


def everything() -> None:
    for check in (
        check_equal_to_one_worker, check_ways_to_step, check_changing_parameters, check_sparse, check_sparse_adam,
        check_attributes, check_mistakes, check_adasum, check_nothing_is_negotiated,
    ):  # fmt: skip
        check()


@workers(2)
def test_on_2() -> None:
    everything()


@workers(3)
def test_on_3() -> None:
    everything()


def test_alone() -> None:
    hvd.init()
    try:
        weight = nn.Parameter(torch.ones(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.5), [("w", weight)], op=hvd.Adasum)
        for _ in range(2):
            optimizer.zero_grad()
            (weight**2).sum().backward()
            optimizer.synchronize()
            with pytest.warns(UserWarning, match=STEP_WARNING):
                optimizer.step()
        assert weight.tolist() == [0.0, 0.0]
    finally:
        hvd.shutdown()
