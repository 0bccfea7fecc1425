"""The state of one worker for all: parameters, every optimizer before and after steps, objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

import rueda.hvd.torch as hvd
from harness import workers
from rueda.optim import LAMB, LARC, LARS, AdaScale, NovoGrad


@contextmanager
def world() -> Iterator[int]:
    hvd.init()
    try:
        yield hvd.rank()
    finally:
        hvd.shutdown()


def alike(value: Any) -> bool:
    """Say whether all ranks hold the same, down to type, dtype and bits."""
    return len({_text(other) for other in hvd.allgather_object(value)}) == 1


def _text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {value.tolist()}"
    if isinstance(value, dict):
        return str({key: _text(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return type(value).__name__ + str([_text(item) for item in value])
    return f"{type(value).__name__} {value!r}"


class Odd(nn.Module):
    """A model with all that a state dict can hold."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.dense = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)
        self.thin = nn.Parameter(torch.randn(2, 2).to(torch.bfloat16))
        self.frozen = nn.Parameter(torch.randn(5), requires_grad=False)
        self.register_buffer("mask", torch.rand(4) > 0.5)
        self.register_buffer("turned", torch.randn(3, 2).t())
        self.register_buffer("none", torch.empty(0, 3))
        self.extra = seed

    def get_extra_state(self) -> dict[str, int]:
        return {"seed": self.extra}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.extra = state["seed"]


@pytest.mark.parametrize("form", ["state_dict", "named_parameters", "parameters", "list"])
@workers(3)
def test_parameters(form: str) -> None:
    with world() as rank:
        root = 2
        model, expected = Odd(rank), Odd(root)
        if form == "state_dict":
            state = model.state_dict()
            hvd.broadcast_parameters(state, root_rank=root)
            assert _text(dict(state)) == _text(dict(expected.state_dict()))
            model.load_state_dict(state)
            assert model.extra == root
        elif form == "list":
            hvd.broadcast_parameters(list(model.named_parameters()), root)
        else:
            hvd.broadcast_parameters(getattr(model, form)(), root_rank=root)
        assert _text(list(model.parameters())) == _text(list(expected.parameters()))
        assert all(parameter.requires_grad == (name != "frozen") for name, parameter in model.named_parameters())
        with pytest.raises(ValueError, match="expected a state dict"):
            hvd.broadcast_parameters(3, root_rank=0)  # type: ignore[arg-type]


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), betas=(0.8, 0.9)),
    "Adamax": lambda p: torch.optim.Adamax(p),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "RAdam": lambda p: torch.optim.RAdam(p),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adagrad": lambda p: torch.optim.Adagrad(p, initial_accumulator_value=0.1),
    "Adafactor": lambda p: torch.optim.Adafactor(p),
    "ASGD": lambda p: torch.optim.ASGD(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.5),
    "Rprop": lambda p: torch.optim.Rprop(p),
    "SparseAdam": lambda p: torch.optim.SparseAdam(p),
    "LBFGS": lambda p: torch.optim.LBFGS(p, max_iter=3),
    "LARS": lambda p: LARS(p, lr=0.1),
    "LAMB": lambda p: LAMB(p, lr=0.1),
    "NovoGrad": lambda p: NovoGrad(p, lr=0.1),
    "LARC": lambda p: LARC(torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "AdaScale": lambda p: AdaScale(torch.optim.SGD(p, lr=0.1, momentum=0.9), scale=1),
}
if hasattr(torch.optim, "Muon"):  # for matrices alone
    OPTIMIZERS["Muon"] = lambda p: torch.optim.Muon(p[:1])


def test_the_table_has_every_optimizer_of_torch() -> None:
    names = {name for name, kind in vars(torch.optim).items() if isinstance(kind, type) and issubclass(kind, Optimizer)}
    assert names - {"Optimizer"} <= set(OPTIMIZERS)


def parameters(seed: int) -> list[nn.Parameter]:
    torch.manual_seed(seed)
    return [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(4))]


def steps(optimizer: Optimizer, own: list[nn.Parameter], count: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    for _ in range(count):
        targets = [torch.randn(parameter.shape, generator=random) for parameter in own]

        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            value = sum((parameter - target).square().sum() for parameter, target in zip(own, targets, strict=True))  # noqa: B023
            value.backward()  # type: ignore[union-attr]
            if isinstance(optimizer, torch.optim.SparseAdam):
                for parameter in own:
                    parameter.grad = parameter.grad.to_sparse()  # type: ignore[union-attr]
            return value  # type: ignore[return-value]

        optimizer.step(loss)


@workers(2)
def test_every_optimizer_before_and_after_its_first_step() -> None:
    with world() as rank:
        for name, make in OPTIMIZERS.items():
            for before in ((0, 0), (2, 1), (0, 2)):  # steps taken on rank 0, rank 1
                own = parameters(seed=7)
                optimizer = make(own)
                steps(optimizer, own, before[rank], seed=rank)
                for group in optimizer.param_groups:
                    group["lr"] = group["lr"] * (rank + 1)
                kept = [parameter.detach().clone() for parameter in own]
                old = _text(optimizer.state_dict())
                hvd.broadcast_optimizer_state(optimizer, root_rank=0)
                assert all(torch.equal(now, then) for now, then in zip(own, kept, strict=True)), "a step was taken"
                assert alike(optimizer.state_dict()), (name, before)
                assert rank != 0 or _text(optimizer.state_dict()) == old, (name, "the root changed")
                # The same parameters, the same gradients: from here on the same steps.
                hvd.broadcast_parameters(own, root_rank=0)
                steps(optimizer, own, 2, seed=5)
                assert alike([parameter.detach() for parameter in own]), (name, before)


@workers(3)
def test_an_optimizer_that_is_distributed_and_dtypes_that_torch_would_round() -> None:
    with world() as rank:
        own = parameters(seed=rank)
        optimizer = hvd.DistributedOptimizer(torch.optim.Adam(own, lr=0.1 * (rank + 1)))
        if rank == 1:  # a checkpoint that one worker loaded
            elsewhere = parameters(seed=8)
            other = torch.optim.Adam(elsewhere, lr=0.7)
            steps(other, elsewhere, 3, seed=1)
            optimizer.load_state_dict(other.state_dict())
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        assert alike(optimizer.state_dict()) and optimizer.param_groups[0]["lr"] == 0.7
        assert isinstance(optimizer, torch.optim.Adam)
        half = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        plain = torch.optim.SGD([half], lr=0.1, momentum=0.9)
        if rank == 0:
            plain.state[half]["momentum_buffer"] = torch.full((3,), 1.001, dtype=torch.float32)
        hvd.broadcast_optimizer_state(plain, root_rank=0)
        assert plain.state[half]["momentum_buffer"].dtype == torch.float32
        assert plain.state[half]["momentum_buffer"].tolist() == torch.full((3,), 1.001).tolist()


@pytest.mark.parametrize("value", [None, {"a": [1, 2.5, "é"]}, b"", "x" * 300_000, Fraction])
@workers(3)
def test_objects(value: Any) -> None:
    with world() as rank:
        for root in (0, 2):
            given = (value, root) if rank == root else "ignored"
            assert hvd.broadcast_object(given, root_rank=root) == (value, root)
            assert hvd.broadcast_object(given, root, name="mine") == (value, root)
        everything = hvd.allgather_object((rank, value), name="all")
        assert everything == [(each, value) for each in range(3)]
        assert hvd.allgather_object(list(range(rank * 1000))) == [list(range(each * 1000)) for each in range(3)]


@workers(3)
def test_what_only_cloudpickle_takes_and_a_part_of_the_ranks() -> None:
    pytest.importorskip("cloudpickle")
    with world() as rank:
        double = hvd.broadcast_object((lambda x: 2 * x) if rank == 0 else None)
        assert double(21) == 42
        pair = hvd.add_process_set([0, 2])
        if pair.included():
            assert hvd.broadcast_object(rank, root_rank=2, process_set=pair) == 2
            assert hvd.allgather_object(rank, process_set=pair) == [0, 2]
            tensor = torch.tensor([float(rank)])
            hvd.broadcast_parameters([("t", tensor)], 2, process_set=pair)
            assert tensor.item() == 2.0
        hvd.remove_process_set(pair)


def test_alone() -> None:
    with world():
        own = parameters(seed=1)
        optimizer = torch.optim.Adam(own)
        hvd.broadcast_parameters(own, root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert hvd.broadcast_object({"a": 1}) == {"a": 1} and hvd.allgather_object(3) == [3]
