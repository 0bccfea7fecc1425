"""What a script can observe of Horovod 0.28.1, case by case: defaults, returned types, dtypes and shapes, errors.

The facts are Horovod's documentation and its own tests (``test/parallel/test_torch.py``).
"""

from __future__ import annotations

import inspect
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rueda.hvd.torch as hvd
from harness import workers
from rueda.hvd.common import util
from rueda.hvd.torch import mpi_ops

# Function and argument: Horovod's default.
DEFAULTS: dict[str, dict[str, Any]] = {
    "allreduce": {"average": None, "name": None, "op": None, "prescale_factor": 1.0, "postscale_factor": 1.0,
                  "compression": hvd.Compression.none, "process_set": hvd.global_process_set},
    "allreduce_async": {"average": None, "name": None, "op": None, "process_set": hvd.global_process_set},
    "allreduce_": {"average": None, "name": None, "op": None},
    "grouped_allreduce": {"average": None, "op": None, "compression": hvd.Compression.none},
    "allgather": {"name": None, "process_set": hvd.global_process_set},
    "grouped_allgather": {"name": None, "process_set": hvd.global_process_set},
    "broadcast": {"root_rank": inspect.Parameter.empty, "name": None},
    "alltoall": {"splits": None, "name": None, "process_set": hvd.global_process_set},
    "reducescatter": {"name": None, "compression": hvd.Compression.none, "op": hvd.Average, "prescale_factor": 1.0},
    "reducescatter_async": {"name": None, "op": hvd.Average, "postscale_factor": 1.0},
    "grouped_reducescatter": {"op": hvd.Average},
    "sparse_allreduce_async": {"name": inspect.Parameter.empty, "op": inspect.Parameter.empty},
    "join": {"device": -1},
    "barrier": {"process_set": hvd.global_process_set},
    "broadcast_parameters": {"root_rank": inspect.Parameter.empty, "process_set": hvd.global_process_set},
    "broadcast_optimizer_state": {"root_rank": inspect.Parameter.empty, "model": None},
    "broadcast_object": {"root_rank": 0, "name": None, "process_set": hvd.global_process_set},
    "allgather_object": {"name": None},
    "start_timeline": {"mark_cycles": False},
    "init": {"comm": None, "process_sets": None},
    "DistributedOptimizer": {"named_parameters": None, "compression": hvd.Compression.none, "op": hvd.Average,
                             "backward_passes_per_step": 1, "gradient_predivide_factor": 1.0, "num_groups": 0,
                             "groups": None, "sparse_as_dense": False, "process_set": hvd.global_process_set},
    "SyncBatchNorm": {"eps": 1e-5, "momentum": 0.1, "affine": True, "track_running_stats": True},
}  # fmt: skip


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(name: str) -> None:
    found = {key: value.default for key, value in inspect.signature(getattr(hvd, name)).parameters.items()}
    assert {key: found[key] for key in DEFAULTS[name]} == DEFAULTS[name]


def test_operations_have_horovods_numbers() -> None:
    assert [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product] == list(range(6))


def test_before_init_every_question_is_a_value_error() -> None:
    if hvd.is_initialized():
        hvd.shutdown()
    for ask in (hvd.rank, hvd.size, hvd.local_rank, hvd.local_size, hvd.cross_rank, hvd.cross_size, hvd.is_homogeneous):
        with pytest.raises(ValueError, match="init"):
            ask()
    with pytest.raises((RuntimeError, ValueError), match="init"):
        hvd.allreduce(torch.ones(1))
    hvd.shutdown()  # without init it does nothing


def sync(handle: Any) -> Any:
    return hvd.synchronize(handle)


def returned(n: int, r: int) -> dict[str, tuple[Any, type, list[tuple[torch.dtype, tuple[int, ...]]]]]:
    """A call, the type of what it returns, and the dtypes and shapes of the tensors in it."""
    f, i = torch.float32, torch.int32
    half = torch.ones(2, dtype=torch.float16)
    rows, even = torch.ones(r + 1, 3), torch.ones(2 * n, 3)
    total = n * (n + 1) // 2
    pair = [torch.ones(2), torch.ones(3, dtype=i)]
    both = [(f, (2,)), (i, (3,))]
    splits = torch.tensor([2] * n)
    return {
        "allreduce": (lambda: hvd.allreduce(half), torch.Tensor, [(torch.float16, (2,))]),
        "allreduce, compressed": (lambda: hvd.allreduce(torch.ones(2), compression=hvd.Compression.fp16),
                                  torch.Tensor, [(f, (2,))]),
        "allreduce of an integer scalar": (lambda: hvd.allreduce(torch.tensor(3)), torch.Tensor, [(torch.int64, ())]),
        "allreduce_": (lambda: hvd.allreduce_(half), torch.Tensor, [(torch.float16, (2,))]),
        "allreduce_async": (lambda: hvd.allreduce_async(half), int, []),
        "synchronize": (lambda: sync(hvd.allreduce_async(half)), torch.Tensor, [(torch.float16, (2,))]),
        "poll": (lambda: hvd.poll(hvd.allreduce_async(half)), bool, []),
        "grouped_allreduce": (lambda: hvd.grouped_allreduce(pair, op=hvd.Sum), list, both),
        "grouped_allreduce_": (lambda: hvd.grouped_allreduce_(pair, op=hvd.Max), tuple, both),
        "grouped_allreduce_async": (lambda: sync(hvd.grouped_allreduce_async(pair)), tuple, both),
        "grouped_allreduce_async_": (lambda: sync(hvd.grouped_allreduce_async_(pair)), tuple, both),
        "allgather": (lambda: hvd.allgather(rows), torch.Tensor, [(f, (total, 3))]),
        "allgather of a scalar": (lambda: hvd.allgather(torch.tensor(1.0)), torch.Tensor, [(f, (n,))]),
        "grouped_allgather": (lambda: hvd.grouped_allgather([rows, half]), tuple,
                              [(f, (total, 3)), (torch.float16, (2 * n,))]),
        "grouped_allgather_async": (lambda: sync(hvd.grouped_allgather_async([rows])), tuple, [(f, (total, 3))]),
        "broadcast": (lambda: hvd.broadcast(half, 0), torch.Tensor, [(torch.float16, (2,))]),
        "alltoall": (lambda: hvd.alltoall(even), torch.Tensor, [(f, (2 * n, 3))]),
        "alltoall, list": (lambda: hvd.alltoall(even, [2] * n), tuple, [(f, (2 * n, 3)), (i, (n,))]),
        "alltoall, int32": (lambda: hvd.alltoall(even, splits.int()), tuple, [(f, (2 * n, 3)), (i, (n,))]),
        "alltoall, int64": (lambda: hvd.alltoall(even, splits), tuple, [(f, (2 * n, 3)), (torch.int64, (n,))]),
        "alltoall_async": (lambda: sync(hvd.alltoall_async(even)), tuple, [(f, (2 * n, 3)), (i, (n,))]),
        "reducescatter": (lambda: hvd.reducescatter(even), torch.Tensor, [(f, (2, 3))]),
        "reducescatter, uneven": (lambda: hvd.reducescatter(torch.ones(2 * n + 1)), torch.Tensor,
                                  [(f, (2 + (r == 0),))]),
        "grouped_reducescatter": (lambda: hvd.grouped_reducescatter([even]), list, [(f, (2, 3))]),
        "grouped_reducescatter_async": (lambda: sync(hvd.grouped_reducescatter_async([even])), tuple, [(f, (2, 3))]),
        "barrier": (lambda: hvd.barrier(), type(None), []),
        "join": (lambda: hvd.join(), int, []),
        "broadcast_object": (lambda: hvd.broadcast_object({"a": r}, 0), dict, []),
        "allgather_object": (lambda: hvd.allgather_object({"a": r}), list, []),
        "broadcast_parameters": (lambda: hvd.broadcast_parameters({"a": half}, 0), type(None), []),
        "get_process_set_ids_and_ranks": (lambda: hvd.global_process_set.ranks, list, []),
        "remove_process_set": (lambda: hvd.remove_process_set(hvd.global_process_set), bool, []),
        "nccl_built": (hvd.nccl_built, int, []),
        "mpi_built": (hvd.mpi_built, bool, []),
    }  # fmt: skip


def refused() -> dict[str, tuple[Any, type[Exception]]]:
    """A call and the exception that Horovod raises."""
    n = hvd.size()
    weight = nn.Parameter(torch.zeros(1))
    sgd = torch.optim.SGD([weight], lr=1.0)
    return {
        "reducescatter with Adasum": (lambda: hvd.reducescatter(torch.ones(n), op=hvd.Adasum), RuntimeError),
        "grouped_reducescatter, too": (lambda: hvd.grouped_reducescatter([torch.ones(n)], op=hvd.Adasum), RuntimeError),
        "an unknown operation": (lambda: hvd.allreduce(torch.ones(1), op=17), RuntimeError),
        "Adasum of integers": (lambda: hvd.allreduce(torch.ones(1, dtype=torch.int32), op=hvd.Adasum), RuntimeError),
        "HorovodInternalError": (lambda: hvd.reducescatter(torch.ones(n), op=hvd.Adasum), hvd.HorovodInternalError),
        "op and average": (lambda: hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum), ValueError),
        "rows that cannot be divided": (lambda: hvd.alltoall(torch.ones(n + 1)), ValueError),
        "splits that exceed the rows": (lambda: hvd.alltoall(torch.ones(n - 1), [1] * n), ValueError),
        "splits of floats": (lambda: hvd.alltoall(torch.ones(n), torch.ones(n)), ValueError),
        "reducescatter of a scalar": (lambda: hvd.reducescatter(torch.tensor(1.0)), ValueError),
        "a root rank that does not exist": (lambda: hvd.broadcast(torch.ones(1), n), ValueError),
        "params of a wrong type": (lambda: hvd.broadcast_parameters(torch.ones(1), 0), ValueError),
        "a set that exists": (lambda: hvd.add_process_set(list(range(n))), ValueError),
        "a set of the same rank twice": (lambda: hvd.ProcessSet([0, 0]), ValueError),
        "a set of no rank": (lambda: hvd.add_process_set([n]), ValueError),
        "no backward pass": (lambda: hvd.DistributedOptimizer(sgd, backward_passes_per_step=0), ValueError),
        "predivide with Sum": (lambda: hvd.DistributedOptimizer(sgd, op=hvd.Sum, gradient_predivide_factor=2.0),
                               ValueError),
        "named_parameters without names": (lambda: hvd.DistributedOptimizer(sgd, [weight]), ValueError),
        "one parameter in two groups": (lambda: hvd.DistributedOptimizer(sgd, groups=[[weight], [weight]]), ValueError),
    }  # fmt: skip


def check_observable() -> None:
    hvd.init()
    for name, (call, kind, tensors) in returned(hvd.size(), hvd.rank()).items():
        result = call()
        assert isinstance(result, kind), (name, type(result))
        found = [result] if isinstance(result, torch.Tensor) else list(result) if tensors else []
        assert [(tensor.dtype, tuple(tensor.shape)) for tensor in found] == tensors, name
    for name, (call, error) in refused().items():
        with pytest.raises(error):
            call()
            pytest.fail(name)
    first = hvd.allreduce_async(torch.ones(1), name="twice")
    with pytest.raises(ValueError):
        hvd.allreduce_async(torch.ones(1), name="twice")
    assert hvd.synchronize(first).item() == 1.0 and hvd.synchronize(first) is None
    assert hvd.HorovodInternalError.__mro__[1] is RuntimeError
    check_fresh_optimizers()


def check_fresh_optimizers() -> None:
    """After broadcast_optimizer_state of a new optimizer, trainable parameters have gradients of zeros."""
    for make in (torch.optim.SGD, torch.optim.Adam, torch.optim.SparseAdam):
        model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        model[0].weight.requires_grad_(False)
        optimizer = make(model.parameters(), lr=0.1)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        for parameter in model.parameters():
            if not parameter.requires_grad:
                assert parameter.grad is None
                continue
            assert parameter.grad is not None and parameter.grad.shape == parameter.shape
            assert parameter.grad.is_sparse == (make is torch.optim.SparseAdam)
            assert not parameter.grad.to_dense().any() and not parameter.grad.requires_grad
        for parameter in model[1].parameters():
            parameter.grad = torch.ones_like(parameter)
            optimizer.state[parameter]["step"] = torch.tensor(1.0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # now it has state: gradients stay
        assert all(parameter.grad.eq(1).all() for parameter in model[1].parameters())


@workers(2)
def test_observable_on_2() -> None:
    check_observable()


@workers(3)
def test_observable_on_3() -> None:
    check_observable()


def test_average_warns_as_horovod_does() -> None:
    choose = mpi_ops.handle_average_backwards_compatibility
    for average, op in ((True, hvd.Average), (False, hvd.Sum)):
        with pytest.warns(DeprecationWarning, match="^Parameter `average` has been replaced with `op`"):
            assert choose(None, average) == op
    assert choose(None, None) == hvd.Average and choose(hvd.Max, None) == hvd.Max


def test_helpers_of_common_util() -> None:
    path = util.get_extension_full_path("/site/horovod/torch/__init__.py", "mpi_lib_v2", "_mpi_lib_v2")
    assert path == f"/site/horovod/torch/mpi_lib_v2/_mpi_lib_v2{util.get_ext_suffix()}"
    assert util.check_installed_version("pytorch", "1.0") is None  # type: ignore[func-returns-value]
    util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
    with pytest.raises(ImportError):
        util.check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", __file__, "mpi_lib")


def test_helpers_of_runner(tmp_path: Path) -> None:
    from rueda.hvd.runner.common.util import codec, host_hash, hosts, secret, timeout

    assert codec.loads_base64(codec.dumps_base64([1, "a"])) == [1, "a"]
    assert codec.dumps_base64(1, to_ascii=False) == codec.dumps_base64(1).encode()  # type: ignore[union-attr]
    key = secret.make_secret_key()
    digest = secret.compute_digest(key, b"m")
    assert len(digest) == secret.DIGEST_LENGTH and secret.check_digest(key, b"m", digest)
    assert not secret.check_digest(key, b"n", digest) and key != secret.make_secret_key()
    assert host_hash.host_hash() == host_hash.host_hash() != host_hash.host_hash("salt")
    with pytest.raises(timeout.TimeoutException, match="the start took more than -1 s"):
        timeout.Timeout(-1, "{activity} took more than {timeout} s").check_time_out_for("the start")
    assert 0 < timeout.Timeout(9, "").remaining() <= 9 and not timeout.Timeout(9, "").timed_out()
    file = tmp_path / "hosts"
    file.write_text("a slots=2\nb slots=1\n")
    assert hosts.parse_host_files(str(file)) == "a:2,b:1"
    slots = hosts.get_host_assignments(hosts.parse_hosts("a:2,b:1"), 3)
    assert [slot.to_response_string() for slot in slots] == ["0,3,0,2,0,2", "1,3,1,2,0,1", "2,3,0,1,1,2"]
    assert hosts.HostInfo.from_string("c:4") == hosts.HostInfo("c", 4)
    assert len(hosts.get_host_assignments(hosts.parse_hosts("a:2,b:2"), 1, 3)) == 3


def test_jobs_from_python(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from commandline import catch_launches
    from rueda.hvd import runner
    from rueda.hvd.runner import launch

    monkeypatch.delenv("HOROVOD_START_TIMEOUT", raising=False)
    launched = catch_launches(monkeypatch, 0)
    job = runner._HorovodArgs()
    job.num_proc, job.hosts, job.command = 3, "a:2,b:2", ["python", "train.py"]
    assert launch._run(job) is None
    monkeypatch.setattr(sys, "argv", ["horovodrun", "-np", "2", "python", "t.py"])
    assert launch.parse_args().num_proc == 2
    with pytest.raises(SystemExit, match="0"):
        launch.run_commandline()
    assert [plan.workers for plan, *_ in launched] == [3, 2]
    monkeypatch.setattr(sys, "argv", ["horovodrun", "-np", "2"])
    with pytest.raises(SystemExit, match="2"):
        launch.run_commandline()
    assert capsys.readouterr().err.startswith("horovodrun: the program is missing")


class Recorder:
    """Records the devices on which ``torch.cuda`` was asked for a stream, and those that were made current."""

    def __init__(self) -> None:
        self.streams: list[torch.device] = []
        self.current: list[torch.device] = []

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None

    def device(self, device: torch.device) -> Recorder:
        self.current.append(device)
        return self

    def stream(self, device: torch.device) -> Recorder:
        self.streams.append(device)
        return self

    def record(self, stream: Recorder) -> None:
        assert stream is self

    def wait_event(self, event: Recorder) -> None:
        assert event is self


def test_collectives_run_on_the_gpu_of_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the background thread GPU 0 is current on every rank; events and streams must be those of the tensors' GPU."""
    from rueda.hvd.core import execute, process_groups

    seen = Recorder()
    monkeypatch.setattr(torch.cuda, "Event", lambda: seen)
    monkeypatch.setattr(torch.cuda, "current_stream", seen.stream)
    monkeypatch.setattr(torch.cuda, "device", seen.device)
    third = torch.device("cuda", 3)

    class Tensor:
        device = third

    def in_thread() -> None:
        ready = process_groups.record_event([Tensor()])  # type: ignore[list-item]
        assert ready is not None
        process_groups.wait_for_event(ready)
        groups = process_groups.ProcessGroups(None, 0, lambda: None, 0.0)
        nothing: Any = None
        executor = execute.Executor(
            rank=0,
            device=third,
            sets={0: (0,)},
            entries={},
            repetitions=nothing,
            groups=groups,
            fusion_bytes=0,
            timeline=nothing,
        )
        monkeypatch.setattr(executor, "_run", lambda response: [])
        executor.run(None)  # type: ignore[arg-type]
        assert not seen.current  # no tensor was on a GPU yet
        groups.device = ready.device
        executor.run(None)  # type: ignore[arg-type]

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    assert seen.streams == [third, third] and seen.current == [third]
