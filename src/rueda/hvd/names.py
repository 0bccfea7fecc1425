"""Every public name of Horovod 0.28 and its state in Rueda: the source of the tables in ``docs/horovod.md``.

Using a name that Rueda does not have raises an error with the note from this list::

    >>> import rueda.hvd
    >>> rueda.hvd.spark
    Traceback (most recent call last):
    AttributeError: horovod.spark is gone: start the workers with `rueda run`, Slurm or Kubernetes; ...

``python -m rueda.hvd.names docs/horovod.md`` rewrites the tables of that page; a test checks that they are up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SAME, BETTER, DIFFERENT, LATER, GONE = "same", "better", "different", "not yet", "gone"
BEGIN, END = "<!-- made by python -m rueda.hvd.names -->", "<!-- end -->"


@dataclass(frozen=True)
class Name:
    """A name of Horovod: its module there, its state in Rueda, and a note or the replacement."""

    module: str
    name: str
    state: str
    note: str = ""

    @property
    def path(self) -> str:
        """The qualified name."""
        return f"{self.module}.{self.name}"


# By module: names | state | note
_TABLES = {
    "horovod.torch": """
init | better | can be called again after `shutdown()`, any number of times in one process
shutdown | better | leaves no thread, socket or memory behind
is_initialized | same |
rank, size, local_rank, local_size, cross_rank, cross_size | same |
is_homogeneous | same |
start_timeline, stop_timeline | same | Chrome's trace format, at any time
mpi_built, mpi_enabled, mpi_threads_supported | same | False: MPI can start the workers but sends no tensors
gloo_built, gloo_enabled | same | whether torch was built with Gloo
nccl_built, cuda_built, rocm_built | same | what torch was built with; `nccl_built` is NCCL's version as a number
ddl_built, ccl_built | same | 0: torch.distributed uses neither
Average, Sum, Min, Max, Product | same |
Adasum | better | defined for any number of workers, not only for powers of two
Compression | better | `none`, `fp16`, and `bf16`, which has the range of float32
allreduce, allreduce_, allreduce_async, allreduce_async_ | better | every dtype; a mismatch raises on all ranks
grouped_allreduce, grouped_allreduce_, grouped_allreduce_async, grouped_allreduce_async_ | better | as `allreduce`
sparse_allreduce_async | same |
allgather, allgather_async, grouped_allgather, grouped_allgather_async | same | first dimensions may differ
broadcast, broadcast_, broadcast_async, broadcast_async_ | same |
alltoall, alltoall_async | better | with `splits`, of any integer type, it also returns the received splits
reducescatter, reducescatter_async, grouped_reducescatter, grouped_reducescatter_async | better | also Min, Max, Product
poll, synchronize, join, barrier | same |
ProcessSet, global_process_set | better | `size()` and `rank()` of an unregistered set raise instead of returning None
add_process_set, remove_process_set | better | at any time, without HOROVOD_DYNAMIC_PROCESS_SETS
HorovodInternalError, HostsUpdatedInterrupt | same |
DistributedOptimizer | better | no negotiation after step 1; supports closures, `set_to_none`, Adasum in process sets
SyncBatchNorm | better | also on CPU, with batches of any size, and with `process_set`
broadcast_parameters | better | also takes generators, and state dict entries that are not tensors
broadcast_optimizer_state | better | for every optimizer, even before its first step; takes no step; keeps types
broadcast_object, allgather_object | same | one collective fewer; plain pickle where cloudpickle is not installed
elastic | better | survivors keep their process; a fresh worker never gives its state to the others
""",
    "horovod.torch.elastic": """
run | better | a mismatch of the ranks' tensors is raised, since another try would not help
TorchState | better | models, optimizers, schedules, samplers, other values; a copy survives a second failure
ElasticSampler | better | a commit covers what all ranks have processed; also `record_indices`
State, ObjectState | better | Horovod has them in `horovod.common.elastic` only
state, sampler | same | `state.get_handler_registry`, `state.set_handler_registry` and the handlers, too
""",
    "horovod.tensorflow": """
init, shutdown, is_initialized | better | as in `horovod.torch`
rank, size, local_rank, local_size, cross_rank, cross_size, is_homogeneous | same |
start_timeline, stop_timeline | same |
mpi_built, mpi_enabled, mpi_threads_supported, gloo_built, gloo_enabled | same | as in `horovod.torch`
nccl_built, cuda_built, rocm_built, ddl_built, ccl_built | same | what torch was built with: it sends the tensors
Average, Sum, Min, Max, Product | same |
Adasum, check_num_rank_power_of_2 | better | Adasum is defined for any number of workers
Compression | better | `none`, `fp16` and `bf16`
allreduce, grouped_allreduce | better | every dtype; also scales IndexedSlices; a mismatch raises on all ranks
allgather, grouped_allgather, broadcast, broadcast_ | same | in eager mode and in `tf.function`, with gradients
alltoall | better | `splits` of any integer type
reducescatter, grouped_reducescatter | better | also Min, Max, Product
join | same |
barrier | better | Horovod has it in `horovod.torch` only
rank_op, local_rank_op, size_op, local_size_op, process_set_included_op | same |
ProcessSet, global_process_set | better | as in `horovod.torch`
add_process_set, remove_process_set | better | at any time, without HOROVOD_DYNAMIC_PROCESS_SETS
get_process_set_ids_and_ranks, is_process_set_included | better | Horovod has them in `horovod.common` only
HorovodInternalError, HostsUpdatedInterrupt | better | likewise
DistributedGradientTape, PartialDistributedGradientTape | better | one call for all gradients; `groups` is not needed
DistributedOptimizer | better | for Keras 3, tf_keras and `tf.compat.v1.train`
LocalGradientAggregationHelper | better | in eager mode, `tf.function` and TensorFlow 1 graphs; also for IndexedSlices
LocalGradientAggregationHelperEager | better | the same; Horovod has it in its module only
SyncBatchNormalization | better | for Keras 3 and tf_keras; batches of different sizes are weighted by their size
broadcast_variables | better | TensorFlow's and Keras's variables, in one call; in a TensorFlow 1 graph an operation
broadcast_object, broadcast_object_fn, allgather_object | same | `session` is accepted, but not needed
broadcast_global_variables, BroadcastGlobalVariablesHook | same | for TensorFlow 1 graphs; an error in eager mode
gpu_available, check_extension, handle_average_backwards_compatibility | same |
elastic | same | as in `horovod.torch`
mpi_ops, compression, functions, sync_batch_norm, gradient_aggregation, gradient_aggregation_eager | same |
data | gone | use tf.data with `shard(hvd.size(), hvd.rank())`, or TensorFlow's own tf.data.experimental.service
util | gone | private helpers of Horovod's graphs
""",
    "horovod.tensorflow.elastic": """
TensorFlowState, TensorFlowKerasState | same | `session` and `backend` are accepted, but not needed
run | better | as in `horovod.torch.elastic`
""",
    "horovod.keras": """
init, shutdown, is_initialized | better | as in `horovod.torch`; all names are those of `horovod.tensorflow.keras`, too
rank, size, local_rank, local_size, cross_rank, cross_size, is_homogeneous | same |
start_timeline, stop_timeline | same |
mpi_built, mpi_enabled, mpi_threads_supported, gloo_built, gloo_enabled | same | as in `horovod.torch`
nccl_built, cuda_built, rocm_built, ddl_built, ccl_built | same | as in `horovod.torch`
Average, Sum | same | as in `horovod.torch`
Adasum, Min, Max, Product | better | Horovod has them in `horovod.tensorflow` only
Compression | better | `none`, `fp16`, and `bf16`, which has the range of float32
DistributedOptimizer | better | every optimizer of Keras 3 and tf_keras; arguments as in `horovod.tensorflow.keras`
PartialDistributedOptimizer | better | also `backward_passes_per_step`
broadcast_global_variables | same | raises, as Horovod does with TensorFlow 2: variables belong to models
broadcast_variables | better | Horovod has it in `horovod.tensorflow` only
allreduce, allgather, broadcast, reducescatter | better | values of any backend; also `process_set`
broadcast_object, allgather_object | better | Horovod has them in `horovod.tensorflow` only
load_model | better | any format and optimizer; `custom_optimizers` and `legacy_opts` are accepted
callbacks | better | the next table; `BroadcastGlobalVariablesCallback` broadcasts before the first step, if it can
elastic | same | as in `horovod.torch`
ProcessSet, global_process_set, add_process_set, remove_process_set | better | as in `horovod.torch`
HorovodInternalError, HostsUpdatedInterrupt | same |
""",
    "horovod.keras.callbacks": """
BroadcastGlobalVariablesCallback | better | before the first step, if all variables exist; with `register_local_var`
MetricAverageCallback | better | one collective for all metrics, in float64
LearningRateScheduleCallback | better | momentum correction also in compiled steps of today's Keras
LearningRateWarmupCallback | same | the same message, too
BestModelCheckpoint | better | also takes `filepath`
""",
    "horovod.keras.elastic": """
KerasState, CommitStateCallback, UpdateBatchStateCallback, UpdateEpochStateCallback | same |
run | better | as in `horovod.torch.elastic`
""",
    "horovod": """
__version__ | same | 0.28.1+rueda: not less than Horovod's last version, for scripts that compare
run | better | an exception in a worker is raised with its rank and traceback
torch, tensorflow, runner, common, version | same |
keras | better | also `horovod.tensorflow.keras`: one module; Keras 3 on TensorFlow, torch and JAX, and tf_keras
mxnet | gone | retired in 2023, does not install beside today's NumPy; use `horovod.torch` or `horovod.keras`
spark | gone | start the workers with `rueda run`, Slurm or Kubernetes; read the data with rueda.Loader
ray | gone | Ray removed Horovod; use Ray Train's TorchTrainer, and `rueda.hvd.torch` in its training function
data | gone | use torch.utils.data.DataLoader, or rueda.Loader, which prefetches
metadata | gone | see `rueda horovodrun --check-build`
""",
    "horovod.common.util": """
env | same | sets environment variables for a `with` block
split_list, is_iterable, num_rank_is_power_2, get_average_backwards_compatibility_fun | same |
extension_available, gpu_available, check_extension | same | for `torch` and `tensorflow`; nothing is compiled
mpi_built, gloo_built, nccl_built, ddl_built, ccl_built, cuda_built, rocm_built | same | as in `horovod.torch`
is_version_greater_equal_than | same |
get_ext_suffix, get_extension_full_path | same | no such file exists: Rueda has no compiled extension
check_installed_version | same | does nothing: Rueda has no compiled extension that depends on a version of torch
support_non_legacy_keras_optimizers | same | True
""",
    "horovod.common.elastic": """
State, ObjectState | same |
run_fn | better | as `horovod.torch.elastic.run`; `reset` is called in jobs that are not elastic only
""",
    "horovod.runner": """
run | better | as `horovod.run`
launch | same | `run_commandline`, `parse_args`, and `_run` with `_HorovodArgs`
run_task, gloo_run, mpi_run, js_run | gone | there is one launcher: rueda.world.launch
elastic | gone | the driver belongs to the launcher: `horovodrun --min-np`, `rueda run --min-np`, rueda.world.elastic
""",
    "horovod.runner.common.util.env": """
get_env_rank_and_size | better | also reads the variables of torchrun, Slurm, Open MPI, MPICH and Intel MPI
is_exportable, IGNORE_REGEXES, LOG_LEVEL_STR | same |
is_kubeflow_mpi, KUBEFLOW_MPI_EXEC | gone | `rueda run --kubernetes` writes a manifest for Kubeflow Trainer
""",
    "horovod.runner.common.util": """
codec | same | `dumps_base64`, `loads_base64`
host_hash | same | `host_hash`
hosts | same | `HostInfo`, `SlotInfo`, `parse_hosts`, `parse_host_files`, `get_host_assignments`
secret | same | `make_secret_key`, `compute_digest`, `check_digest`
timeout | same | `Timeout`, `TimeoutException`
network, safe_shell_exec, settings, config_parser | gone | they belong to Horovod's launcher; use `rueda.hvd.run`
""",
    "horovod.runner.util.threads": """
in_thread, execute_function_multithreaded, on_event | same |
""",
}


def _rows(module: str) -> Iterator[tuple[list[str], str, str]]:
    """Read a table: the names of each row, their state, and the note."""
    for line in _TABLES[module].strip().splitlines():
        names, state, note = (cell.strip() for cell in line.split("|"))
        yield names.split(", "), state, note


NAMES = {
    f"{module}.{name}": Name(module, name, state, note)
    for module in _TABLES
    for names, state, note in _rows(module)
    for name in names
}


def explain_absence(path: str) -> str | None:
    """Say what to use instead of a name; return None if Rueda has it, or if it is not a name of Horovod.

    >>> explain_absence("horovod.mxnet.gluon")
    "horovod.mxnet is gone: retired in 2023, does not install beside today's NumPy; use ..."
    >>> explain_absence("horovod.torch.allreduce")
    """
    while path:
        entry = NAMES.get(path)
        if entry is not None:
            if entry.state not in (LATER, GONE):
                return None
            where = "gone" if entry.state == GONE else "not in Rueda yet"
            return f"{path} is {where}: {entry.note}"
        path = path.rpartition(".")[0]
    return None


def no_attribute(module: str, name: str) -> AttributeError:
    """Return the error for an attribute that a module does not have."""
    reason = None if name.startswith("_") else explain_absence(f"{module}.{name}")
    return AttributeError(reason or f"module {module!r} has no attribute {name!r}", name=name)


def no_module(path: str) -> ModuleNotFoundError:
    """Return the error for a module that does not exist."""
    return ModuleNotFoundError(explain_absence(path) or f"No module named {path!r}", name=path)


def tables() -> str:
    """Return the tables of the page in Markdown, one for each module."""
    lines: list[str] = []
    for module in _TABLES:
        lines += [f"### `{module}`", "", "| name | here | |", "|---|---|---|"]
        for names, state, note in _rows(module):
            shown = ", ".join(f"`{name}`" for name in names)
            lines.append(f"| {shown} | {state} | {note} |".replace("|  |", "| |"))
        lines.append("")
    return "\n".join(lines)


def with_tables(page: str, made: str) -> str:
    """Replace the tables between the two marks of a page.

    >>> with_tables(f"# Title {BEGIN} old {END} rest", "new").replace("\\n", " ")
    '# Title <!-- made by python -m rueda.hvd.names --> new <!-- end --> rest'
    """
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{made}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    from rueda.hvd.runner.options import table

    made = f"{tables()}\n### `horovodrun`\n\n{table()}"
    if sys.argv[1:]:
        file = Path(sys.argv[1])
        file.write_text(with_tables(file.read_text(encoding="utf-8"), made), encoding="utf-8")
    else:
        print(made)
