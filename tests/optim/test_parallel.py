"""The same parameters on two workers as on one, replicated (DDP) and sharded (FSDP2); and a compiled step."""

from __future__ import annotations

import contextlib
import copy
import shutil
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn

from harness import workers
from rueda.optim import LAMB, LARC, LARS, NonFiniteError, NovoGrad, parameter_groups

MAKERS = {
    "lars": lambda groups: LARS(groups, lr=0.5, trust=0.02),
    "lars-nesterov": lambda groups: LARS(groups, lr=0.5, trust=0.02, nesterov=True),
    "lamb": lambda groups: LAMB(groups, lr=0.02, max_grad_norm=0.1),
    "lamb-skip": lambda groups: LAMB(groups, lr=0.02, nonfinite="skip"),
    "novograd": lambda groups: NovoGrad(groups, lr=0.02),
    "larc": lambda groups: LARC(torch.optim.SGD(groups, lr=0.1, momentum=0.9), trust=0.02),
}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 3)).double()  # 7 rows on 2: uneven


def batches(steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(steps, 8, 6, generator=generator).double(), torch.randn(
        steps, 8, 3, generator=generator
    ).double()


def train(net: nn.Module, optimizer: torch.optim.Optimizer, share: slice, steps: int = 6) -> None:
    for x, y in zip(*batches(steps), strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x[share]), y[share]).backward()
        optimizer.step()


def alone(name: str) -> nn.Module:
    net = model()
    train(net, MAKERS[name](parameter_groups(net, weight_decay=0.01)), slice(None))
    return net


def half() -> slice:
    return slice(dist.get_rank() * 4, dist.get_rank() * 4 + 4)


@pytest.mark.parametrize("name", MAKERS)
@workers(2)
def test_ddp_on_two_workers_is_one_worker_at_twice_the_batch(name):
    net = model()
    wrapped = nn.parallel.DistributedDataParallel(net)
    train(wrapped, MAKERS[name](parameter_groups(net, weight_decay=0.01)), half())
    for p, q in zip(net.parameters(), alone(name).parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", MAKERS)
@workers(2)
def test_fsdp2_on_two_workers_is_one_worker_at_twice_the_batch(name):
    net, optimizer = sharded(name)
    train(net, optimizer, half())
    expected = dict(alone(name).named_parameters())
    for key, p in net.named_parameters():
        torch.testing.assert_close(p.full_tensor(), expected[key], rtol=1e-10, atol=1e-10)
    state = copy.deepcopy(optimizer.state_dict())
    again, resumed = sharded(name)
    again.load_state_dict(copy.deepcopy(net.state_dict()))
    resumed.load_state_dict(state)
    for one, other in ((net, optimizer), (again, resumed)):
        train(one, other, half(), steps=2)
    for p, q in zip(net.parameters(), again.parameters(), strict=True):
        assert torch.equal(p.to_local(), q.to_local())


@workers(2)
def test_a_nan_in_one_shard_is_known_to_all():
    net, optimizer = sharded("lamb")
    train(net, optimizer, half(), steps=1)
    before = [p.to_local().clone() for p in net.parameters()]
    if dist.get_rank() == 1:
        net[0].weight.grad.to_local().fill_(torch.nan)
    with pytest.raises(NonFiniteError, match=r"0\.weight"):
        optimizer.step()
    assert torch.equal(net[0].weight.to_local(), before[0])
    assert all(p.to_local().isfinite().all() for p in net.parameters())


def sharded(name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    net = model()
    for layer in (net[0], net[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net, MAKERS[name](parameter_groups(net, weight_decay=0.01))


inductor = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor on a CPU needs a C++ compiler")


def _without_trial_compilations(backend: str) -> contextlib.AbstractContextManager[None]:
    """Let inductor believe the kernel about the processor: it would compile a file for each instruction set (8 s)."""
    if backend != "inductor":
        return contextlib.nullcontext()
    import torch._inductor.config

    return torch._inductor.config.patch({"cpp.vec_isa_ok": True, "compile_threads": 1})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "nonfinite", "backend"),
    [
        (LARS, "raise", "aot_eager"),
        (LARS, "skip", "aot_eager"),
        (LAMB, "raise", "aot_eager"),
        (NovoGrad, "raise", "aot_eager"),
        (NovoGrad, "skip", "aot_eager"),
        pytest.param(LAMB, "skip", "inductor", marks=inductor),
    ],
)
def test_a_compiled_step_is_the_same(kind, nonfinite, backend):
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 3), (3,)]
    first = [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]
    second = copy.deepcopy(first)
    eager, other = (kind(params, lr=0.1, weight_decay=0.01, nonfinite=nonfinite) for params in (first, second))
    with warnings.catch_warnings(), _without_trial_compilations(backend):
        warnings.simplefilter("ignore")  # of the compiler itself
        compiled = torch.compile(other.step, backend=backend)
        for _ in range(4):
            for p, q in zip(first, second, strict=True):
                p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64)
                q.grad = p.grad.clone()
            eager.step()
            compiled()
    torch._dynamo.reset()
    for p, q in zip(first, second, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-10)
