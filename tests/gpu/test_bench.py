"""The bench itself: the impostor computes the CPU's numbers, refuses what a GPU refuses, and every wait is recorded."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from gpu.bench import on_impostor

DEVICE = torch.device("cuda", 1)


def convnet() -> nn.Module:
    torch.manual_seed(0)
    parts = [
        nn.Conv2d(1, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(4 * 6 * 6, 3),
    ]
    return nn.Sequential(*parts)


def train(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return the parameters and buffers after three steps, on the CPU."""
    model = convnet().to(device, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)  # the default on a GPU, not on a CPU
    torch.manual_seed(1)
    x, y = torch.randn(6, 1, 8, 8, dtype=dtype).to(device), torch.tensor([0, 1, 2, 0, 1, 2]).to(device)
    torch.manual_seed(2)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
    return torch.cat([tensor.detach().double().cpu().flatten() for tensor in model.state_dict().values()])


@on_impostor()
def test_training_has_the_numbers_of_the_cpu() -> None:
    for dtype, tolerance in ((torch.float64, 0.0), (torch.float32, 1e-5)):
        found, expected = train(DEVICE, dtype), train(torch.device("cpu"), dtype)
        assert torch.allclose(found, expected, rtol=0.0, atol=tolerance), float((found - expected).abs().max())
    assert torch.accelerator.current_accelerator() == torch.device("cuda")


@on_impostor()
def test_what_a_gpu_refuses_is_refused() -> None:
    from gpu import impostor

    here, there, host = torch.ones(3, device=DEVICE), torch.ones(3, device="cuda:2"), torch.ones(3)
    table: list[tuple[Callable[[], Any], str]] = [
        (lambda: here + there, "same device"),
        (lambda: here + host, "same device"),
        (lambda: here.addcmul_(here, host), "same device"),
        (lambda: torch.randn(3, device=DEVICE, generator=torch.Generator()), "generator"),
        (lambda: here.numpy(), "can't convert cuda"),
    ]
    for action, message in table:
        with pytest.raises((RuntimeError, TypeError), match=message):
            action()
    assert torch.equal((here + torch.tensor(1.0)).cpu(), torch.full((3,), 2.0))  # a number on the CPU is allowed
    allocated = torch.cuda.memory_allocated(3)
    impostor.set_capacity(allocated + 1000, 3)
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.empty(251, device="cuda:3")
    torch.empty(250, device="cuda:3")
    impostor.set_capacity(16 << 30, 3)


@on_impostor()
def test_each_device_has_its_generator_memory_and_current_device_by_thread() -> None:
    import threading

    torch.manual_seed(5)
    states = [torch.cuda.get_rng_state(index) for index in (0, 1)]
    drawn = torch.rand(4, device="cuda:1")
    assert torch.equal(torch.cuda.get_rng_state(0), states[0])
    assert not torch.equal(torch.cuda.get_rng_state(1), states[1])
    torch.cuda.set_rng_state(states[1], 1)
    assert torch.equal(torch.rand(4, device="cuda:1"), drawn)
    own = torch.Generator(device="cuda:1").manual_seed(5)
    assert own.device == DEVICE and torch.equal(torch.rand(4, device="cuda:1", generator=own), drawn)

    before = torch.cuda.memory_allocated(4)
    held = torch.empty(100, device="cuda:4")
    assert torch.cuda.memory_allocated(4) == before + 400
    del held
    assert torch.cuda.memory_allocated(4) == before and torch.cuda.max_memory_allocated(4) >= 400

    seen: list[int] = []
    with torch.cuda.device(2):
        assert torch.empty(1, device="cuda").device.index == 2
        thread = threading.Thread(target=lambda: seen.append(torch.cuda.current_device()))
        thread.start()
        thread.join()
    assert seen == [0] and torch.cuda.current_device() == 0  # as CUDA: a new thread begins on device 0


@on_impostor()
def test_the_recorder_counts_kernels_and_waits() -> None:
    from gpu.recorder import Recorder

    x, host = torch.arange(6.0, device=DEVICE), torch.empty(6, pin_memory=True)
    assert host.is_pinned() and not torch.empty(6).is_pinned()
    waiting: dict[str, Callable[[], Any]] = {
        "item": lambda: float(x.sum()),
        "copy cuda to cpu": lambda: x.cpu(),
        "copy cpu to cuda": lambda: torch.tensor([1.0, 2.0], device=DEVICE),
        "boolean mask": lambda: x[x > 2],
        "nonzero": lambda: x.nonzero(),
        "synchronize": lambda: torch.cuda.synchronize(),
        "event.synchronize": lambda: torch.cuda.Event().synchronize(),
        "stream.synchronize": lambda: torch.cuda.current_stream().synchronize(),
    }
    for kind, action in waiting.items():
        with Recorder() as record:
            action()
        assert [found for _, found in record.waits] == [kind], kind

    def none() -> None:
        x.mul(2).add_(1.0)
        x.to("cpu", non_blocking=True)  # torch itself takes pinned memory here
        host.copy_(x, non_blocking=True)
        torch.ones(6).to(DEVICE, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        event.query()

    with Recorder() as record:
        none()
    assert not record.waits and record.kernels["aten.mul.Tensor"] == record.kernels["aten.add_.Tensor"] == 1
    assert ("record", (0, 0)) in record.calls
    side = torch.cuda.Stream(DEVICE)
    with Recorder() as record, torch.cuda.stream(side):
        assert torch.cuda.current_stream(DEVICE) == side
        torch.cuda.Event().record()
    assert ("record", side.where) in record.calls and side.where[0] == 1
    with Recorder() as record:  # the kernels of the backward pass, which runs in another thread
        weight = torch.ones(6, device=DEVICE, requires_grad=True)
        (weight * x).sum().backward()
    assert record.num_kernels >= 3 and record.num_waits == 0


@on_impostor()
def test_fake_tensors_run_billions_of_parameters_and_refuse_to_wait() -> None:
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with FakeTensorMode():
        layers = [nn.Linear(20_000, 20_000, bias=False, device=DEVICE) for _ in range(4)]
        model = nn.Sequential(*layers)  # 1.6 G parameters: 6.4 GB, and twice as much for Adam
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        model(torch.ones(2, 20_000, device=DEVICE)).square().mean().backward()
        optimizer.step()
        assert sum(parameter.numel() for parameter in model.parameters()) == 1_600_000_000
        with pytest.raises(DataDependentOutputException):
            float(torch.ones(2, device=DEVICE).sum())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes


@on_impostor(workers=2)
def test_two_workers_on_two_devices_have_the_collectives_of_nccl() -> None:
    import rueda.world

    world = rueda.world.current()
    assert world.device == torch.device("cuda", world.rank) and torch.cuda.current_device() == world.rank
    mine = torch.full((2,), float(world.rank + 1), device=world.device)
    assert world.all_reduce(mine).tolist() == [3.0, 3.0]
    assert world.all_reduce(mine, "mean").tolist() == [1.5, 1.5]
    assert [part.tolist() for part in world.all_gather(mine)] == [[1.0, 1.0], [2.0, 2.0]]
    assert world.broadcast(mine, 1).tolist() == [2.0, 2.0] and world.broadcast(mine).device == world.device
    assert world.all_gather_object({"rank": world.rank}) == [{"rank": 0}, {"rank": 1}]
    assert dist.get_backend() in ("nccl", "cpu:gloo,cuda:nccl")
    world.barrier()
    torch.manual_seed(0)
    model = world.wrap(nn.Linear(3, 1).double())
    model(torch.full((2, 3), float(world.rank), device=world.device, dtype=torch.float64)).sum().backward()
    assert next(model.parameters()).grad.tolist() == [[1.0, 1.0, 1.0]]  # type: ignore[union-attr]
