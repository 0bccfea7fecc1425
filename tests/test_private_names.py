"""The private names of torch that this package uses: a list, and for each a test of what it must do.

torch may change them in any version. The list is complete (the first test reads the source), and ``pyproject.toml``
claims no version of torch but the one that the tests run with.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from harness import workers

SOURCE = Path(__file__).parents[1] / "src" / "rueda"
NAMES = re.compile(
    r"(?:\btorch(?:\._C(?:\._nn)?|\.ops\.mkldnn)?|\bdist|_c10d|\bnn\.modules\.\w+|storage\(\)"
    r"|\b(?:tensor|layer|module|parent|group|each))\.(_(?!_|C\b)\w+)"
    r"|\bworker\.(_worker_info)"
    r"|\bfrom torch\._C(?:\.\w+)? import ([\w, ]+)|\"(_storage_Use_Count|_dump_fr_trace_json)\""
)


def _foreach(operation: str, expected: list[float], *more: Any, **options: Any) -> Callable[[], None]:
    """A multi-tensor operation on 1 and 4 does what its name says, in place if it ends with an underscore."""

    def check() -> None:
        tensors = [torch.tensor([1.0]), torch.tensor([4.0])]
        result = getattr(torch, operation)(tensors, *more, **options)
        found = tensors if operation.endswith("_") else result
        assert [float(each) for each in found] == expected

    return check


def fused_sgd() -> None:
    w, v = torch.tensor([1.0]), torch.tensor([10.0])
    options = {"weight_decay": 0.0, "lr": 1.0, "nesterov": False, "maximize": False, "is_first_step": False}
    torch._fused_sgd_([w], [torch.tensor([2.0])], [v], momentum=0.5, dampening=0.75, **options)
    assert (float(v), float(w)) == (5.5, -4.5)  # v = m v + (1 - dampening) g, w -= v


def fused_adamw() -> None:
    w, m, v, step = torch.tensor([3.0]), torch.zeros(1), torch.zeros(1), torch.tensor(1.0)
    numbers = {"lr": -1.0, "beta1": 0.9, "beta2": 0.999, "weight_decay": -1.0, "eps": 0.0, "maximize": False}
    torch._fused_adamw_([w], [torch.tensor([2.0])], [m], [v], [], [step], amsgrad=False, **numbers)
    assert float(w) == pytest.approx(1.0) and float(m) == pytest.approx(0.2)  # w is overwritten by the update


def functorch() -> None:
    seen: list[bool] = []
    torch.func.vmap(lambda x: seen.append(torch._C._are_functorch_transforms_active()) or x)(torch.ones(2))
    assert seen == [True] and not torch._C._are_functorch_transforms_active()


def storage_count() -> None:
    tensor = torch.ones(2)
    address = tensor.untyped_storage()._cdata
    before = torch._C._storage_Use_Count(address)
    view = tensor.view(1, 2)
    assert torch._C._storage_Use_Count(address) == before + 1
    del view
    assert torch._C._storage_Use_Count(address) == before


def flatten() -> None:
    from torch._C._nn import flatten_dense_tensors, unflatten_dense_tensors

    tensors = [torch.ones(2), torch.zeros(1, 3)]
    flat = flatten_dense_tensors(tensors)
    assert flat.tolist() == [1, 1, 0, 0, 0]
    assert [part.shape for part in unflatten_dense_tensors(flat, tensors)] == [part.shape for part in tensors]


def base_and_version() -> None:
    tensor = torch.ones(2)
    assert tensor._base is None and tensor.view(1, 2)._base is tensor
    version = tensor._version
    tensor.add_(1)
    assert tensor._version == version + 1


def sparse() -> None:
    tensor = torch.sparse_coo_tensor([[1]], [2.0], (3,), check_invariants=True)
    assert tensor._indices().tolist() == [[1]] and tensor._values().tolist() == [2.0]


def module_state() -> None:
    layer = nn.BatchNorm1d(2)
    parent = nn.Sequential(layer)
    assert set(layer._buffers) == {"running_mean", "running_var", "num_batches_tracked"}
    assert set(layer._parameters) == {"weight", "bias"}
    layer._parameters["bias"] = nn.Parameter(torch.ones(2))
    assert layer.bias.tolist() == [1.0, 1.0] and len(list(layer.parameters())) == 2
    parent._modules["0"] = nn.Identity()
    assert isinstance(parent[0], nn.Identity)
    assert not layer._forward_hooks and not layer._forward_pre_hooks
    assert isinstance(layer, nn.modules.batchnorm._BatchNorm) and isinstance(layer, nn.modules.batchnorm._NormBase)
    assert isinstance(nn.InstanceNorm1d(2), nn.modules.batchnorm._NormBase)


def graph_task() -> None:
    """The number of the backward pass that runs, -1 outside of one."""
    seen: list[int] = []
    tensor = torch.ones(1, requires_grad=True)
    tensor.register_hook(lambda gradient: seen.append(torch._C._current_graph_task_id()))
    tensor.sum().backward()
    assert seen[0] >= 0 and torch._C._current_graph_task_id() == -1


def loader_info() -> None:
    from torch.utils.data import get_worker_info
    from torch.utils.data._utils import worker

    assert get_worker_info() is None and worker._worker_info is None
    worker._worker_info = told = object()
    try:
        assert get_worker_info() is told
    finally:
        worker._worker_info = None


def group_methods() -> None:
    """Tested on two workers below."""


def compiler_wrappers() -> None:
    """The wrappers that load the compiler have the free variables of those that stand in for them."""
    optimizer = torch.optim.Optimizer
    for method in (optimizer.add_param_group, optimizer.zero_grad, optimizer.state_dict, optimizer.load_state_dict):
        assert method.__code__.co_freevars == ("fn", "recursive")
    step: Any = torch.optim.SGD.step
    while step.__code__.co_name != "_use_grad":  # others call its hooks
        step = step.__wrapped__
    assert step.__code__.co_freevars == ("func",)


TWO = [torch.tensor([2.0]), torch.tensor([3.0])]
WHAT: dict[str, Callable[[], None]] = {
    "_foreach_add_": _foreach("_foreach_add_", [3.0, 7.0], TWO),
    "_foreach_add": _foreach("_foreach_add", [3.0, 7.0], TWO),
    "_foreach_div_": _foreach("_foreach_div_", [0.5, 2.0], 2.0),
    "_foreach_sub_": _foreach("_foreach_sub_", [-1.0, 1.0], TWO),
    "_foreach_mul_": _foreach("_foreach_mul_", [2.0, 8.0], 2.0),
    "_foreach_copy_": _foreach("_foreach_copy_", [2.0, 3.0], TWO),
    "_foreach_lerp_": _foreach("_foreach_lerp_", [1.5, 3.5], TWO, 0.5),
    "_foreach_norm": _foreach("_foreach_norm", [1.0, 4.0], 2, dtype=torch.float64),
    "_fused_sgd_": fused_sgd,
    "_fused_adamw_": fused_adamw,
    "_are_functorch_transforms_active": functorch,
    "_storage_Use_Count": storage_count,
    "_cdata": storage_count,
    "flatten_dense_tensors": flatten,
    "unflatten_dense_tensors": flatten,
    "_base": base_and_version,
    "_version": base_and_version,
    "_indices": sparse,
    "_values": sparse,
    "_buffers": module_state,
    "_modules": module_state,
    "_parameters": module_state,
    "_forward_hooks": module_state,
    "_forward_pre_hooks": module_state,
    "_BatchNorm": module_state,
    "_NormBase": module_state,
    "_worker_info": loader_info,
    "_current_graph_task_id": graph_task,
    "_get_default_store": group_methods,
    "_get_default_group": group_methods,
    "_resolve_process_group": group_methods,
    "_allgather_base": group_methods,
    "_reduce_scatter_base": group_methods,
    "_set_default_timeout": group_methods,
    "_get_backend": group_methods,
    "_set_pg_timeout": group_methods,
    "_distributed_c10d": group_methods,
    "_world": group_methods,
    "_dump_fr_trace": group_methods,
    "_dump_fr_trace_json": group_methods,
    "_dynamo": compiler_wrappers,
    "_is_mkldnn_fp16_supported": lambda: isinstance(torch.ops.mkldnn._is_mkldnn_fp16_supported(), bool),
    "_is_mkldnn_bf16_supported": lambda: isinstance(torch.ops.mkldnn._is_mkldnn_bf16_supported(), bool),
}


def test_the_list_is_complete() -> None:
    found = set()
    for file in SOURCE.rglob("*.py"):
        for match in NAMES.finditer(file.read_text()):
            found |= {name.strip() for name in next(filter(None, match.groups())).split(",")}
    found -= {"_foreach_"}  # of a docstring
    assert found == set(WHAT), found ^ set(WHAT)


@pytest.mark.parametrize("name", WHAT)
def test_a_private_name_does_what_is_needed(name: str) -> None:
    WHAT[name]()


@workers(2)
def test_private_names_of_process_groups() -> None:
    from datetime import timedelta

    from torch._C import _distributed_c10d

    default = dist.distributed_c10d._get_default_group()
    assert dist.distributed_c10d._resolve_process_group(default.group_name) is default
    if hasattr(_distributed_c10d, "_dump_fr_trace_json"):  # not in old versions
        assert isinstance(json.loads(_distributed_c10d._dump_fr_trace_json(onlyActive=False)), dict)
    assert pickle.loads(_distributed_c10d._dump_fr_trace()).keys() >= {"entries", "pg_config", "pg_status"}
    group = dist.distributed_c10d._get_default_group()
    assert group.size() == 2 and group.rank() == dist.get_rank()
    assert isinstance(dist.distributed_c10d._world.pg_names[group], str)
    dist.distributed_c10d._get_default_store().set(f"private {dist.get_rank()}", "here")
    dist.barrier()
    assert dist.distributed_c10d._get_default_store().get(f"private {1 - dist.get_rank()}") == b"here"
    mine, both = torch.full((1,), float(group.rank())), torch.empty(2)
    group._allgather_base(both, mine).wait()
    assert both.tolist() == [0.0, 1.0]
    group._reduce_scatter_base(mine, both).wait()
    assert mine.tolist() == [2.0 * group.rank()]
    other = dist.new_group([0, 1])
    other._get_backend(torch.device("cpu"))._set_default_timeout(timedelta(seconds=99))
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=98), other)
    dist.barrier(other)
    dist.destroy_process_group(other)
