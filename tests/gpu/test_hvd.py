"""The Horovod front on two impostor devices: all collectives, their events, and the device of its thread."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from gpu.bench import on_impostor


@on_impostor(workers=2)
def test_all_reduces_and_their_events_stay_on_the_device_of_the_rank() -> None:
    import rueda.hvd.torch as hvd
    from gpu import impostor
    from gpu.recorder import Recorder

    hvd.init()
    try:
        rank, device = hvd.rank(), torch.device("cuda", hvd.local_rank())
        on_gpu_0 = impostor.num_allocations(0)
        with Recorder() as record:
            large = torch.full((4000,), float(rank + 1), device=device)
            assert torch.equal(hvd.allreduce(large, op=hvd.Sum), torch.full((4000,), 3.0, device=device))
            handle = hvd.allreduce_async(large, op=hvd.Average, name="later")  # the background thread may run it
            assert hvd.synchronize(handle)[0].item() == 1.5
        events = {where for what, where in record.calls if what in ("record", "wait_event")}
        places = {where[0] if isinstance(where[0], tuple) else where for where in events}
        assert {place[0] for place in places} == {rank}  # also those of the engine's own thread
        if rank == 1:
            assert impostor.num_allocations(0) == on_gpu_0  # nothing of rank 1 was ever on GPU 0
    finally:
        hvd.shutdown()


@on_impostor(workers=2)
def test_the_background_thread_is_on_the_device_of_its_rank() -> None:
    import rueda.hvd.torch as hvd
    from rueda.hvd.core.engine import Engine

    seen: list[int] = []
    original = Engine._make_progress

    def watched(self: Engine, milliseconds: float = 0) -> bool:
        if threading.current_thread().name == "rueda.hvd":
            seen.append(torch.cuda.current_device())
        return original(self, milliseconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "_make_progress", watched)
        hvd.init()
        try:
            handle = hvd.allreduce_async(torch.ones(3, device=torch.device("cuda", hvd.local_rank())), name="async")
            while not seen:  # without hvd.poll, by which this thread would make the progress itself
                threading.Event().wait(0.01)
            hvd.synchronize(handle)
            assert set(seen) == {hvd.local_rank()}
            hvd.barrier()
        finally:
            hvd.shutdown()


@on_impostor(workers=2)
def test_a_step_of_the_optimizer_does_not_wait_for_the_device() -> None:
    import rueda.hvd.torch as hvd
    from gpu.recorder import Recorder

    hvd.init()
    try:
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)).to(torch.device("cuda", hvd.local_rank()))
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters())
        inputs = torch.ones(3, 4, device=torch.device("cuda", hvd.local_rank()))
        for _ in range(4):  # by name, then in buckets
            optimizer.zero_grad()
            model(inputs).sum().backward()
            with Recorder() as record:
                optimizer.step()
        assert not record.waits, record.waits
        hvd.barrier()
    finally:
        hvd.shutdown()


def collective_results(device: torch.device) -> dict[str, torch.Tensor]:
    """Run every collective on tensors of a device, small and large, and return the results on the host."""
    import rueda.hvd.torch as hvd

    rank, where = hvd.rank(), device.type
    found: dict[str, torch.Tensor] = {}

    def values(*shape: int, seed: int = 0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(10 * seed + rank)
        return torch.randn(*shape, generator=generator).to(device)

    def keep(name: str, *tensors: torch.Tensor) -> None:
        assert all(tensor.device == device for tensor in tensors), name
        found.update({f"{name} {index}": tensor.detach().cpu() for index, tensor in enumerate(tensors)})

    for rows in (2, 3000):
        keep(f"allgather {rows}", hvd.allgather(values(rows, 2), name=f"{where} equal {rows}"))
        keep(f"uneven {rows}", hvd.allgather(values(rows + rank, 2), name=f"{where} uneven {rows}"))
        two = hvd.grouped_allgather([values(rows), values(rows, 2)], name=f"{where} two {rows}")
        keep(f"grouped allgather {rows}", *two)
        keep(f"broadcast {rows}", hvd.broadcast(values(rows, 2), 1, name=f"{where} cast {rows}"))
        splits = torch.tensor([rows - 1, 1])
        rows_of, counts = hvd.alltoall(values(rows, 2), splits, name=f"{where} alltoall {rows}")
        keep(f"alltoall {rows}", rows_of)
        found[f"counts {rows}"] = counts
        for odd in (0, 1):  # an odd number of rows is not divided equally
            scattered = hvd.reducescatter(values(rows + odd, 2), op=hvd.Sum, name=f"{where} scatter {rows} {odd}")
            keep(f"reducescatter {rows} {odd}", scattered)
        keep(f"adasum {rows}", hvd.allreduce(values(rows), op=hvd.Adasum, name=f"{where} adasum {rows}"))
        many = [values(rows, seed=seed) for seed in range(3)]
        keep(f"grouped {rows}", *hvd.grouped_allreduce(many, op=hvd.Average, name=f"{where} grouped {rows}"))
        keep(f"maximum {rows}", hvd.allreduce(values(rows), op=hvd.Max, name=f"{where} maximum {rows}"))
    return found


def trained_weights(device: torch.device, op_name: str) -> torch.Tensor:
    """Train some epochs at whose end rank 0 joins before rank 1; return the weights on the host."""
    import rueda.hvd.torch as hvd

    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 300), torch.nn.Tanh(), torch.nn.Linear(300, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    distributed = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=getattr(hvd, op_name))
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(distributed, 0)
    inputs = torch.randn(12, 8, 6, generator=torch.Generator().manual_seed(hvd.rank())).to(device)
    for num_batches in ((4, 6), (4, 4), (1, 1)):  # of rank 0, which then joins, and of rank 1
        for batch in range(num_batches[hvd.rank()]):
            distributed.zero_grad()
            model(inputs[batch]).square().mean().backward()
            distributed.step()
        if hvd.rank() == 1:  # rank 0 has joined, and contributes zeros also to what is not the optimizer's
            assert hvd.allreduce(torch.ones(3000, device=device), op=hvd.Sum, name="alone").sum() == 3000
        assert hvd.join() == 1
        hvd.broadcast_parameters(model.state_dict(), 1)
        hvd.broadcast_optimizer_state(distributed, 1)
    return torch.cat([parameter.detach().cpu().view(-1) for parameter in model.parameters()])


@on_impostor(workers=2)
def test_all_collectives_and_a_training_with_join_have_the_numbers_of_the_cpu() -> None:
    import rueda.hvd.torch as hvd

    hvd.init()
    try:
        device = torch.device("cuda", hvd.local_rank())
        expected, found = collective_results(torch.device("cpu")), collective_results(device)
        torch.testing.assert_close(found, expected)
        for op_name in ("Average", "Adasum"):
            weights = [trained_weights(torch.device(where), op_name) for where in ("cpu", str(device))]
            torch.testing.assert_close(weights[1], weights[0])
            everywhere = hvd.allgather(weights[1].view(1, -1))
            assert torch.equal(everywhere[0], everywhere[1])
    finally:
        hvd.shutdown()
