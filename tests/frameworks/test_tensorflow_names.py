"""The names and arguments of ``horovod.tensorflow`` are Horovod's."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from operator import attrgetter

import pytest

import rueda.hvd.tensorflow as hvd
from rueda.hvd.names import NAMES, Name

HERE = [name for name in NAMES.values() if name.module.startswith("horovod.tensorflow")]
HERE = [name for name in HERE if name.state not in ("gone", "not yet") and not name.module.endswith("keras")]
SUBMODULES = {"mpi_ops", "compression", "functions", "gradient_aggregation", "gradient_aggregation_eager", "keras"}
SUBMODULES |= {"sync_batch_norm"}


@pytest.mark.parametrize("name", HERE, ids=lambda name: name.path)
def test_present_names_exist(name: Name) -> None:
    home = importlib.import_module(name.module.replace("horovod", "rueda.hvd", 1))
    assert getattr(home, name.name) is not None


def test_every_public_name_is_listed() -> None:
    listed = {name.name for name in HERE if name.module == "horovod.tensorflow"}
    assert listed - SUBMODULES == set(hvd.__all__) and len(set(hvd.__all__)) == len(hvd.__all__) > 60


def test_horovod_is_the_same_module() -> None:
    import rueda.hvd

    rueda.hvd.install()
    assert importlib.import_module("horovod.tensorflow") is hvd
    assert importlib.import_module("horovod.tensorflow.mpi_ops") is hvd.mpi_ops
    assert importlib.import_module("horovod.tensorflow.elastic") is hvd.elastic
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        hvd.nothing  # noqa: B018
    with pytest.raises(AttributeError, match=r"horovod\.tensorflow\.data is gone: use tf\.data"):
        hvd.data  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match=r"is gone: use tf\.data"):
        importlib.import_module("horovod.tensorflow.data.compute_service")


def test_no_file_has_the_name_of_a_function() -> None:
    files = {module.name for module in pkgutil.iter_modules(hvd.__path__)}
    assert len(files) > 10 and files & set(hvd.__all__) == {"elastic"}


_SCALES = "prescale_factor postscale_factor"
# The arguments that Horovod 0.28 documents, in its order: a script may give them by place or by name.
SIGNATURES = {
    "allreduce": f"tensor average device_dense device_sparse compression op {_SCALES} name process_set "
    "ignore_name_scope",
    "grouped_allreduce": f"tensors average device_dense device_sparse compression op {_SCALES} process_set "
    "ignore_name_scope name",
    "reducescatter": f"tensor device_dense compression op name process_set ignore_name_scope {_SCALES}",
    "grouped_reducescatter": f"tensors device_dense compression op process_set {_SCALES}",
    "allgather": "tensor name ignore_name_scope process_set",
    "grouped_allgather": "tensors name ignore_name_scope process_set",
    "broadcast": "tensor root_rank name ignore_name_scope process_set",
    "broadcast_": "variables root_rank name process_set",
    "alltoall": "tensor splits name ignore_name_scope process_set",
    "size_op": "process_set_id name",
    "rank_op": "name",
    "LocalGradientAggregationHelper": "backward_passes_per_step allreduce_func sparse_as_dense "
    "average_aggregated_gradients rank optimizer_type process_set scale_local_gradients name",
    "LocalGradientAggregationHelperEager": "backward_passes_per_step allreduce_func sparse_as_dense "
    "average_aggregated_gradients process_set scale_local_gradients",
    "BroadcastGlobalVariablesHook": "root_rank device",
    "SyncBatchNormalization": "fused",
    "elastic.TensorFlowState": "variables session",
    "elastic.TensorFlowKerasState": "model optimizer backend",
    "broadcast_variables": "variables root_rank process_set inplace",
    "broadcast_object": "obj root_rank session name process_set",
    "broadcast_object_fn": "root_rank session name process_set",
    "allgather_object": "obj session name process_set",
    "DistributedOptimizer": "optimizer name use_locking device_dense device_sparse compression sparse_as_dense "
    "backward_passes_per_step op gradient_predivide_factor average_aggregated_gradients num_groups groups process_set "
    "scale_local_gradients",
    "DistributedGradientTape": "gradtape device_dense device_sparse compression sparse_as_dense op "
    "gradient_predivide_factor num_groups groups process_set scale_local_gradients",
    "PartialDistributedGradientTape": "gradtape device_dense device_sparse compression sparse_as_dense op "
    "gradient_predivide_factor num_groups groups process_set local_layers scale_local_gradients",
}


@pytest.mark.parametrize(("name", "arguments"), SIGNATURES.items())
def test_arguments_are_horovods(name: str, arguments: str) -> None:
    own = list(inspect.signature(attrgetter(name)(hvd)).parameters)
    assert own[: len(arguments.split())] == arguments.split()
