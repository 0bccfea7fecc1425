"""Every name of Horovod 0.28, and what became of it here: the list behind ``docs/horovod.md`` and behind the errors.

A name that is not there raises, and the message is the note in this list::

    >>> import rueda.hvd
    >>> rueda.hvd.spark
    Traceback (most recent call last):
    AttributeError: horovod.spark is gone: start the workers with `rueda run`, Slurm or Kubernetes; ...

``python -m rueda.hvd.names docs/horovod.md`` writes the tables of that page anew; a test keeps it true.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SAME, BETTER, LATER, GONE = "same", "better", "not yet", "gone"
BEGIN, END = "<!-- made by python -m rueda.hvd.names -->", "<!-- end -->"


@dataclass(frozen=True)
class Name:
    """One name: where it stood in Horovod, whether it is here, and what to know or to use instead."""

    module: str
    name: str
    state: str
    note: str = ""

    @property
    def path(self) -> str:
        """The whole name."""
        return f"{self.module}.{self.name}"


_TORCH: dict[str, tuple[str, str]] = {
    # The world.
    "init": (BETTER, "again after `shutdown()`, any number of times in one process"),
    "shutdown": (BETTER, "leaves no thread, socket or memory behind"),
    "is_initialized": (SAME, ""),
    "rank, size, local_rank, local_size, cross_rank, cross_size": (SAME, ""),
    "is_homogeneous": (SAME, ""),
    "start_timeline, stop_timeline": (SAME, "Chrome's trace format, at any time"),
    "mpi_built, mpi_enabled, mpi_threads_supported": (
        SAME,
        "False: MPI may launch the workers, torch.distributed carries the tensors",
    ),
    "gloo_built, gloo_enabled": (SAME, "as torch has it"),
    "nccl_built, cuda_built, rocm_built": (SAME, "as torch has it; `nccl_built` is NCCL's version as a number"),
    "ddl_built, ccl_built": (SAME, "0: torch.distributed has neither"),
    # Tensors.
    "Average, Sum, Min, Max, Product": (SAME, ""),
    "Adasum": (BETTER, "exact for any number of workers, not for powers of two alone"),
    "Compression": (BETTER, "`none`, `fp16`, and `bf16`, which has float32's range"),
    "allreduce, allreduce_, allreduce_async, allreduce_async_": (
        BETTER,
        "every dtype, also int8 and bfloat16; a mismatch is one clear error on all ranks",
    ),
    "grouped_allreduce, grouped_allreduce_, grouped_allreduce_async, grouped_allreduce_async_": (
        BETTER,
        "as `allreduce`",
    ),
    "sparse_allreduce_async": (SAME, ""),
    "allgather, allgather_async, grouped_allgather, grouped_allgather_async": (SAME, "first dimensions may differ"),
    "broadcast, broadcast_, broadcast_async, broadcast_async_": (SAME, ""),
    "alltoall, alltoall_async": (SAME, "with `splits` it also returns the received splits"),
    "reducescatter, reducescatter_async, grouped_reducescatter, grouped_reducescatter_async": (SAME, ""),
    "poll, synchronize, join, barrier": (SAME, ""),
    "ProcessSet, global_process_set, add_process_set, remove_process_set": (
        BETTER,
        "added and removed at any time, without HOROVOD_DYNAMIC_PROCESS_SETS",
    ),
    "HorovodInternalError, HostsUpdatedInterrupt": (SAME, ""),
    # Training.
    "DistributedOptimizer": (
        BETTER,
        "no negotiation after its first step; unused parameters, closures, `zero_grad(set_to_none=...)`",
    ),
    "SyncBatchNorm": (BETTER, "on CPU too, with batches of any size, and with `process_set`"),
    "broadcast_parameters": (BETTER, "also takes generators, and entries of a state dict that are no tensors"),
    "broadcast_optimizer_state": (
        BETTER,
        "every optimizer, also before its first step; no step is taken for it; values keep their types",
    ),
    "broadcast_object, allgather_object": (
        SAME,
        "one collective less; plain pickle where cloudpickle is not installed",
    ),
    "elastic": (LATER, "until elastic training is here, save checkpoints: the first failure ends the job"),
}

_REST: dict[str, dict[str, tuple[str, str]]] = {
    "horovod": {
        "__version__": (SAME, "0.28.1+rueda: at least the last Horovod, for scripts that compare"),
        "run": (BETTER, "a worker's exception comes back with its rank and traceback"),
        "torch, runner, common, version": (SAME, ""),
        "tensorflow": (LATER, "until it is here, use `horovod.torch`, or Keras 3 on its torch backend"),
        "keras": (LATER, "until it is here, use `horovod.torch`, or Keras 3 on its torch backend"),
        "mxnet": (GONE, "MXNet was retired in 2023; use `horovod.torch`"),
        "spark": (GONE, "start the workers with `rueda run`, Slurm or Kubernetes; read the data with rueda.Loader"),
        "ray": (GONE, "Ray removed Horovod; use Ray Train's TorchTrainer, and `rueda.hvd.torch` in its loop"),
        "data": (GONE, "use torch.utils.data.DataLoader, or rueda.Loader, which reads ahead"),
        "metadata": (GONE, "see `rueda horovodrun --check-build`"),
    },
    "horovod.common.util": {
        "env": (SAME, "sets variables for a `with` block"),
        "split_list, is_iterable, num_rank_is_power_2, get_average_backwards_compatibility_fun": (SAME, ""),
        "extension_available, gpu_available, check_extension": (
            SAME,
            "for `torch`; nothing is compiled, so nothing needs building",
        ),
        "mpi_built, gloo_built, nccl_built, ddl_built, ccl_built, cuda_built, rocm_built": (
            SAME,
            "as in `horovod.torch`",
        ),
        "is_version_greater_equal_than": (SAME, ""),
        "get_ext_suffix, get_extension_full_path": (GONE, "nothing is compiled: there is no extension to find"),
        "check_installed_version": (GONE, "nothing was built against a version: torch is used as it is"),
    },
    "horovod.runner": {
        "run": (BETTER, "as `horovod.run`"),
        "launch": (GONE, "use the command `rueda horovodrun`, or rueda.world.launch in Python"),
        "run_task, gloo_run, mpi_run, js_run": (GONE, "one launcher: rueda.world.launch"),
        "elastic": (LATER, "until elastic training is here, the first failure ends the job"),
    },
    "horovod.runner.common.util.env": {
        "get_env_rank_and_size": (BETTER, "understands torchrun, Slurm, Open MPI, MPICH and Intel MPI as well"),
        "is_exportable, IGNORE_REGEXES, LOG_LEVEL_STR": (SAME, ""),
        "is_kubeflow_mpi, KUBEFLOW_MPI_EXEC": (GONE, "`rueda run --kubernetes` writes a manifest for Kubeflow Trainer"),
    },
    "horovod.runner.util.threads": {
        "in_thread, execute_function_multithreaded, on_event": (SAME, ""),
    },
}


def _spread() -> Iterator[Name]:
    for module, rows in {"horovod.torch": _TORCH, **_REST}.items():
        for names, (state, note) in rows.items():
            for name in names.split(", "):
                yield Name(module, name, state, note)


NAMES = {name.path: name for name in _spread()}


def explain_absence(path: str) -> str | None:
    """Say what to use instead of a name; None if the name is here, or never was one of Horovod's.

    >>> explain_absence("horovod.mxnet.gluon")
    'horovod.mxnet is gone: MXNet was retired in 2023; use `horovod.torch`'
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
    """Make the error for an attribute that a module does not have."""
    reason = None if name.startswith("_") else explain_absence(f"{module}.{name}")
    return AttributeError(reason or f"module {module!r} has no attribute {name!r}", name=name)


def no_module(path: str) -> ModuleNotFoundError:
    """Make the error for a module that is not there."""
    return ModuleNotFoundError(explain_absence(path) or f"No module named {path!r}", name=path)


def tables() -> str:
    """Write the tables of the page: a module each, a row for names that share their fate."""
    lines: list[str] = []
    for module, rows in {"horovod.torch": _TORCH, **_REST}.items():
        lines += [f"### `{module}`", "", "| name | here | |", "|---|---|---|"]
        for names, (state, note) in rows.items():
            shown = ", ".join(f"`{name}`" for name in names.split(", "))
            lines.append(f"| {shown} | {state} | {note} |".replace("|  |", "| |"))
        lines.append("")
    return "\n".join(lines)


def renewed(page: str, made: str) -> str:
    """Put the tables between the two marks of a page.

    >>> renewed(f"# Title {BEGIN} old {END} rest", "new").replace("\\n", " ")
    '# Title <!-- made by python -m rueda.hvd.names --> new <!-- end --> rest'
    """
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{made}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    from rueda.hvd.runner.options import table

    made = f"{tables()}\n### `horovodrun`\n\n{table()}"
    if sys.argv[1:]:
        file = Path(sys.argv[1])
        file.write_text(renewed(file.read_text(encoding="utf-8"), made), encoding="utf-8")
    else:
        print(made)
