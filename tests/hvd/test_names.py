"""The list of Horovod's names is true: present names exist, absent ones raise an error with their note."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import rueda.hvd.torch as hvd
from rueda.hvd.names import (
    BETTER,
    DIFFERENT,
    GONE,
    LATER,
    NAMES,
    SAME,
    Name,
    no_attribute,
    no_module,
    tables,
    with_tables,
)
from rueda.hvd.runner.options import table

os.environ.setdefault("KERAS_BACKEND", "torch")  # for the callbacks; another backend may not be installed
PAGE = Path(__file__).parents[2] / "docs" / "horovod.md"
OTHERS = ("horovod.tensorflow", "horovod.keras", "horovod.jax")  # tests/frameworks has their tests
HERE = [name for name in NAMES.values() if name.state in (SAME, BETTER, DIFFERENT) and not name.path.startswith(OTHERS)]
AWAY = [name for name in NAMES.values() if name.state in (LATER, GONE)]


def module(path: str) -> object:
    return importlib.import_module(path.replace("horovod", "rueda.hvd", 1))


@pytest.mark.parametrize("name", HERE, ids=lambda name: name.path)
def test_present_names_exist(name: Name) -> None:
    home = module(name.module)
    if not hasattr(home, name.name):  # a module that nobody has imported yet
        assert module(name.path)
    assert getattr(home, name.name) is not None


@pytest.mark.parametrize("name", AWAY, ids=lambda name: name.path)
def test_absent_names_raise_with_their_note(name: Name) -> None:
    assert name.note, "an absent name must say what to use"
    if name.module not in OTHERS:
        assert not hasattr(module(name.module), name.name)
    for error in (no_attribute(name.module, name.name), no_module(name.path)):
        assert str(error).endswith(name.note) and "\n" not in str(error)


def test_every_public_name_is_listed() -> None:
    assert {f"horovod.torch.{name}" for name in hvd.__all__} == {
        name.path for name in HERE if name.module == "horovod.torch"
    }
    assert len(set(hvd.__all__)) == len(hvd.__all__) > 60


# The arguments that Horovod 0.28 documents, in its order: a script may give them by place or by name.
SIGNATURES = {
    "init": "comm process_sets",
    "allreduce": "tensor average name compression op prescale_factor postscale_factor process_set",
    "allreduce_async": "tensor average name op prescale_factor postscale_factor process_set",
    "allreduce_": "tensor average name op prescale_factor postscale_factor process_set",
    "allreduce_async_": "tensor average name op prescale_factor postscale_factor process_set",
    "grouped_allreduce": "tensors average name compression op prescale_factor postscale_factor process_set",
    "grouped_allreduce_async": "tensors average name op prescale_factor postscale_factor process_set",
    "grouped_allreduce_": "tensors average name op prescale_factor postscale_factor process_set",
    "sparse_allreduce_async": "tensor name op process_set",
    "allgather": "tensor name process_set",
    "grouped_allgather": "tensors name process_set",
    "broadcast": "tensor root_rank name process_set",
    "broadcast_": "tensor root_rank name process_set",
    "broadcast_async": "tensor root_rank name process_set",
    "broadcast_async_": "tensor root_rank name process_set",
    "alltoall": "tensor splits name process_set",
    "alltoall_async": "tensor splits name process_set",
    "reducescatter": "tensor name compression op process_set prescale_factor postscale_factor",
    "reducescatter_async": "tensor name op process_set prescale_factor postscale_factor",
    "grouped_reducescatter": "tensors name compression op process_set prescale_factor postscale_factor",
    "join": "device",
    "barrier": "process_set",
    "poll": "handle",
    "synchronize": "handle",
    "broadcast_parameters": "params root_rank process_set",
    "broadcast_optimizer_state": "optimizer root_rank model process_set",
    "broadcast_object": "obj root_rank name process_set",
    "allgather_object": "obj name process_set",
    "start_timeline": "file_path mark_cycles",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    "DistributedOptimizer": "optimizer named_parameters compression backward_passes_per_step op "
    "gradient_predivide_factor num_groups groups sparse_as_dense process_set",
    "SyncBatchNorm": "num_features eps momentum affine track_running_stats",
}


@pytest.mark.parametrize(("name", "arguments"), SIGNATURES.items())
def test_arguments_are_horovods(name: str, arguments: str) -> None:
    own = list(inspect.signature(getattr(hvd, name)).parameters)
    assert own[: len(arguments.split())] == arguments.split()


# What scripts import from `horovod.torch.mpi_ops` instead, besides the collectives.
FROM_MPI_OPS = (
    "ProcessSet Compression global_process_set handle_average_backwards_compatibility init shutdown is_initialized "
    "rank size local_rank local_size cross_rank cross_size is_homogeneous start_timeline stop_timeline "
    "mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built cuda_built "
    "rocm_built"
)


def test_mpi_ops_has_the_same_names() -> None:
    from rueda.hvd.torch import mpi_ops

    for name in mpi_ops.__all__:
        if name != "handle_average_backwards_compatibility":  # only there
            assert getattr(mpi_ops, name) is getattr(hvd, name)
    for name in FROM_MPI_OPS.split():
        assert getattr(mpi_ops, name) is getattr(hvd, name, getattr(mpi_ops, name))


def test_undocumented_names_of_horovod_exist() -> None:
    from rueda.hvd.common import exceptions, util

    error = exceptions.HorovodVersionMismatchError("torch", "2.6", "2.5")
    assert str(error) == exceptions.get_version_mismatch_message("torch", "2.6", "2.5")
    assert (error.name, error.version, error.installed_version) == ("torch", "2.6", "2.5")
    assert util.EXTENSIONS == ["tensorflow", "torch"]


def test_no_file_has_the_name_of_a_function() -> None:
    """``import horovod.torch.allreduce`` would put the file in the function's place."""
    files = {module.name for module in pkgutil.iter_modules(hvd.__path__)}
    assert len(files) > 10 and files & set(hvd.__all__) == {"elastic"}  # a package, and nothing else of that name


def test_the_page_has_the_tables_of_the_list(tmp_path: Path) -> None:
    made = f"{tables()}\n### `horovodrun`\n\n{table()}"
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_tables(page, made), "run: python -m rueda.hvd.names docs/horovod.md"
    copy = tmp_path / "page.md"
    copy.write_text(with_tables(page, "old"))
    subprocess.run([sys.executable, "-m", "rueda.hvd.names", str(copy)], check=True)
    assert copy.read_text(encoding="utf-8") == page
